// `rules`, the sharding language of logical axes (sharding/rules.h decides which rule applies).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/sharded/sharding.h"

namespace shardinit {

// The hint for a sharding by logical axes when no tensor has any.
inline constexpr char kNoLogicalAxes[] = "no tensor names its `axes`";

// Returns the logical axes of all tensors, including tensors of layouts and tensors that are left
// out.
std::set<std::string> LogicalAxes(const ModelSpec& spec);

// Returns `a`, `[a, b]` or `null`, as in a rule.
std::string InText(const AxisList& axes);

// Returns the language of the rules, and reports errors in them. `is_wrong`: an error in them was
// already reported.
std::unique_ptr<ShardingLanguage> Rules(Building& building, const Mesh& mesh,
                                        std::vector<RuleSpec> rules, bool is_wrong);

}  // namespace shardinit
