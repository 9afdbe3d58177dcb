#include "sharding/rules.h"

#include <algorithm>

namespace shardinit {

RulesResult ResolveRules(const std::vector<std::string>& logical_axes,
                         const std::vector<Rule>& rules, std::vector<int> used) {
  RulesResult result = {PartitionSpec(logical_axes.size()), {}};
  std::vector<bool> is_settled(logical_axes.size());
  for (size_t r = 0; r < rules.size(); ++r) {
    const Rule& rule = rules[r];
    const auto taken = std::ranges::find_first_of(rule.axes, used);
    const bool applies = taken == rule.axes.end();
    for (size_t d = 0; d < logical_axes.size(); ++d) {
      if (logical_axes[d] != rule.logical || is_settled[d]) continue;
      result.trials.push_back({r, d, applies ? -1 : *taken});
      if (!applies) break;
      result.partition.dimensions[d] = rule.axes;
      is_settled[d] = true;
      used.insert(used.end(), rule.axes.begin(), rule.axes.end());
      break;
    }
  }
  return result;
}

bool LacksFallBack(const RulesResult& result) {
  return std::ranges::any_of(result.trials, [&](const RuleTrial& trial) {
    return trial.taken >= 0 && std::ranges::none_of(result.trials, [&](const RuleTrial& other) {
             return other.dimension == trial.dimension && other.taken < 0;
           });
  });
}

}  // namespace shardinit
