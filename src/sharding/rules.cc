#include "sharding/rules.h"

#include <algorithm>

namespace shardinit {

PartitionSpec ResolveRules(const std::vector<std::string>& logical_axes,
                           const std::vector<Rule>& rules, std::vector<int>* fired,
                           std::vector<RuleTrial>* trials) {
  PartitionSpec spec(logical_axes.size());
  fired->assign(logical_axes.size(), -1);
  std::vector<int> used;
  for (size_t r = 0; r < rules.size(); ++r) {
    const Rule& rule = rules[r];
    const auto taken =
        std::find_first_of(rule.axes.begin(), rule.axes.end(), used.begin(), used.end());
    const bool applies = taken == rule.axes.end();
    if (!applies && trials == nullptr) continue;
    for (size_t d = 0; d < logical_axes.size(); ++d) {
      if (logical_axes[d] != rule.logical || (*fired)[d] >= 0) continue;
      if (trials != nullptr) trials->push_back({r, d, applies ? -1 : *taken});
      if (!applies) break;
      spec.cuts[d] = rule.axes;
      (*fired)[d] = static_cast<int>(r);
      used.insert(used.end(), rule.axes.begin(), rule.axes.end());
      break;
    }
  }
  return spec;
}

}  // namespace shardinit
