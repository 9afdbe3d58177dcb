// Logical axis names → mesh axes, by an ordered list of rules: the resolution
// of flax.linen.logical_to_mesh_axes (flax/linen/spmd.py).
#pragma once

#include <string>
#include <vector>

#include "sharding/partition.h"

namespace shardinit {

struct Rule {
  std::string logical;
  std::vector<int> axes;  // Empty: keeps the dimension whole.
};

// A rule that names an axis of the tensor which no earlier rule settled.
struct RuleTrial {
  size_t rule, dimension;
  int taken;  // The mesh axis that kept it from applying; -1: it applies.
};

// Walks the rules in order. A rule applies to the first dimension of its name
// that no earlier rule settled, unless this tensor already uses one of its
// mesh axes; a later rule of the same name is then a fall-back. Dimensions
// without a name, or that no rule settles, stay whole. `fired[d]` receives the
// index of the rule that settled dimension d, or -1. `trials`, if not null,
// receives every rule that was tried, in order.
PartitionSpec ResolveRules(const std::vector<std::string>& logical_axes,
                           const std::vector<Rule>& rules, std::vector<int>* fired,
                           std::vector<RuleTrial>* trials = nullptr);

}  // namespace shardinit
