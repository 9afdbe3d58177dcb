// Which random numbers each tensor is drawn from.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "rng/engines.h"

namespace shardinit {

// Of all that are drawn, in the order of the spec.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors);

}  // namespace shardinit
