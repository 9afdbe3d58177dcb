// `rules`: the sharding language of logical axes (sharding/rules.h decides which rule applies).
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/sharded/sharding.h"
#include "sharding/rules.h"

namespace shardinit {

// The hint for a sharding by logical axes where no tensor has any.
inline constexpr char kNoLogicalAxes[] = "no tensor names its `axes`";

// Returns the logical axes of all tensors, including those of layouts and those that are left out.
std::set<std::string> LogicalAxes(const ModelSpec& spec);

// Returns `a`, `[a, b]` or `null`, as a rule has it.
std::string InText(const AxisList& axes);

class RuleLanguage : public ShardingLanguage {
 public:
  // Reports mistakes in the rules. `is_wrong`: a mistake in them was reported before.
  // `keeps_others`: an axis that no rule names stays whole, and is no mistake.
  RuleLanguage(Building& building, const Mesh& mesh, std::vector<RuleSpec> rules, bool is_wrong,
               bool keeps_others = false);

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override;
  void CheckUse() override;

 private:
  void CheckNames(const AxisNames& axes);
  Explanation::Trial Explain(const RuleTrial& trial, const std::vector<Pin>& pins) const;
  // Resolves again, by the fall-backs of the rules that name an axis of a pin, if they have any.
  RulesResult BesidePins(const RulesResult& resolved, const std::vector<std::string>& logical_axes,
                         const std::vector<Pin>& pins) const;

  Building& building_;
  const Mesh& mesh_;
  const std::vector<RuleSpec> written_;
  const bool keeps_others_;
  std::vector<Rule> rules_;
  std::vector<std::string> logical_;  // names that rules know
  bool lacks_rules_ = false;          // there may be more rules than those that are known
  bool knows_rules_ = true;           // no rule is wrong
  bool unknown_logical_ = false;      // an axis of a tensor was reported that no rule names
  std::set<std::string> seen_;        // names that tensors have
  // Caches the result for each list of axes, as layers come by the thousand.
  std::unordered_map<const AxisNames*, RulesResult> resolved_;
};

}  // namespace shardinit
