// Which random numbers each tensor is drawn from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rng/engines.h"

namespace shardinit {

// The path that a tensor's key is of, if that is not given.
const std::string& DrawPathOf(const Tensor& tensor);

// Of all that are drawn, in the order of the spec.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors);

}  // namespace shardinit
