#include "sharding/rules.h"

#include <algorithm>

namespace shardinit {

PartitionSpec ResolveRules(const std::vector<std::string>& logical_axes,
                           const std::vector<Rule>& rules, std::vector<int>* fired) {
  PartitionSpec spec(logical_axes.size());
  fired->assign(logical_axes.size(), -1);
  std::vector<int> used;
  for (size_t r = 0; r < rules.size(); ++r) {
    const Rule& rule = rules[r];
    const bool taken = std::any_of(rule.axes.begin(), rule.axes.end(), [&](int axis) {
      return std::find(used.begin(), used.end(), axis) != used.end();
    });
    if (taken) continue;
    for (size_t d = 0; d < logical_axes.size(); ++d) {
      if (logical_axes[d] != rule.logical || (*fired)[d] >= 0) continue;
      spec[d] = rule.axes;
      (*fired)[d] = static_cast<int>(r);
      used.insert(used.end(), rule.axes.begin(), rule.axes.end());
      break;
    }
  }
  return spec;
}

}  // namespace shardinit
