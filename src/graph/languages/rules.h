// `rules`, the sharding language of logical axes (sharding/rules.h decides which rule applies).
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/sharded/sharding.h"
#include "sharding/rules.h"

namespace shardinit {

// The hint for a sharding by logical axes when no tensor has any.
inline constexpr char kNoLogicalAxes[] = "no tensor names its `axes`";

// Returns the logical axes of all tensors, including tensors of layouts and tensors that are left
// out.
std::set<std::string> LogicalAxes(const ModelSpec& spec);

// Returns `a`, `[a, b]` or `null`, as in a rule.
std::string InText(const AxisList& axes);

class RuleLanguage : public ShardingLanguage {
 public:
  // Reports errors in the rules. `is_wrong`: an error in them was already reported. `keeps_others`:
  // an axis that no rule names stays whole without an error.
  RuleLanguage(Building& building, const Mesh& mesh, std::vector<RuleSpec> rules, bool is_wrong,
               bool keeps_others = false);

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override;
  void CheckUse() override;

 private:
  void CheckNames(const AxisNames& axes);
  Explanation::TriedRule Explain(const RuleTrial& trial, const std::vector<Pin>& pins) const;
  // Resolves again with the fallbacks of the rules that name a pinned mesh axis, if there are any.
  RulesResult ResolveBesidePins(const RulesResult& resolved,
                                const std::vector<std::string>& logical_axes,
                                const std::vector<Pin>& pins) const;

  Building& building_;
  const Mesh& mesh_;
  const std::vector<RuleSpec> written_;
  const bool keeps_others_;
  std::vector<Rule> rules_;
  std::vector<std::string> logical_;  // names in the rules
  bool lacks_rules_ = false;          // some rules may be unknown
  bool knows_rules_ = true;           // no rule is wrong
  bool unknown_logical_ = false;      // a tensor's axis that no rule names was reported
  std::set<std::string> seen_;        // names on tensors
  // Caches the result for each list of axes, because a model may have thousands of layers.
  std::unordered_map<const AxisNames*, RulesResult> resolved_;
};

}  // namespace shardinit
