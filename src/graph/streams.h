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

// Where tensors begin that are drawn one after another. How many numbers a truncated normal tensor
// of torch_cpu takes depends on them: all are made to tell.
enum class Places { kFound, kLeast };

// Of all that are drawn, in the order of the spec.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places = Places::kFound);

}  // namespace shardinit
