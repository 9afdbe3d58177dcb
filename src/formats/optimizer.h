// Finds the tensors for which an optimizer has a state.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"
#include "spec/optimizer.h"

namespace shardinit {

struct OptimizerState {
  OptimizerSpec spec;
  // The number of each tensor's parameter group in the spec. A tensor that is not here has no
  // state.
  std::unordered_map<const Tensor*, size_t> group_of;

  bool has_hyperparameters() const { return !spec.groups[0].hyperparameters.empty(); }
};

// Finds the groups of a graph's tensors. Reports patterns that match none.
OptimizerState BindOptimizer(OptimizerSpec spec, const InitGraph& graph, Diagnostics& diagnostics);

}  // namespace shardinit
