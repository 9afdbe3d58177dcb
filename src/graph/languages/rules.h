// `rules`: the sharding language of logical axes (sharding/rules.h has how it decides).
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/sharding.h"
#include "sharding/rules.h"

namespace shardinit {

class RuleLanguage : public ShardingLanguage {
 public:
  // Reports mistakes in the rules. `is_wrong`: something in them was reported before.
  // `keeps_others`: an axis that no rule names is no mistake, and stays whole.
  RuleLanguage(Building& building, const Mesh& mesh, std::vector<RuleSpec> rules, bool is_wrong,
               bool keeps_others = false);

  bool Cut(const TensorToCut& tensor, Cutting* cutting, ShardingNotes* notes) override;
  void CheckUse() override;

 private:
  void CheckNames(const AxisNames& axes);
  ShardingNotes::Trial Explain(const RuleTrial& trial) const;

  Building& building_;
  const Mesh& mesh_;
  const std::vector<RuleSpec> written_;
  const bool keeps_others_;
  std::vector<Rule> rules_;
  std::vector<std::string> logical_;  // Names that rules know.
  bool lacks_rules_ = false;          // There may be other rules.
  bool knows_rules_ = true;           // None is wrong.
  bool unknown_logical_ = false;      // A tensor's axis was reported that no rule names.
  std::set<std::string> seen_;        // Names that tensors have.
  std::unordered_map<const AxisNames*, PartitionSpec> partitions_;  // Of layers by the thousand.
};

}  // namespace shardinit
