// Maps logical axis names to mesh axes by an ordered list of rules, as
// flax.linen.logical_to_mesh_axes does (flax/linen/spmd.py).
#pragma once

#include <string>
#include <vector>

#include "sharding/partition.h"

namespace shardinit {

struct Rule {
  std::string logical;
  std::vector<int> axes;  // If empty, the dimension stays whole.
};

// A rule that was tried: it names an axis of the tensor that no earlier rule settled.
struct RuleTrial {
  size_t rule, dimension;
  int taken;  // the mesh axis that kept it from applying; -1 if it applies
};

struct RulesResult {
  PartitionSpec partition;
  std::vector<RuleTrial> trials;  // in the order of the rules
};

// Walks the rules in order. A rule applies to the first dimension with its name that no earlier
// rule settled, unless this tensor already uses one of its mesh axes. A later rule with the same
// name is then a fallback. Dimensions that have no name, or that no rule settles, stay whole.
// `used` are the mesh axes that decide which ranks hold the tensor.
RulesResult ResolveRules(const std::vector<std::string>& logical_axes,
                         const std::vector<Rule>& rules, std::vector<int> used = {});

// Returns whether rules name a dimension but none of them applies to it.
bool LacksFallBack(const RulesResult& result);

}  // namespace shardinit
