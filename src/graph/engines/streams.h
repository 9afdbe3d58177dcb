// Assigns the random numbers that each tensor is drawn from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rng/engines.h"

namespace shardinit {

// Returns the path that gives a tensor's key if no key is given.
const std::string& DrawPathOf(const Tensor& tensor);

// How to find where tensors of a sequential stream begin. The count of numbers that a truncated
// normal tensor of torch_cpu takes depends on the numbers: kFound makes them all to count them,
// kLeast assumes the smallest count.
enum class Places { kFound, kLeast };

// Assigns streams to all drawn tensors, in the order of the spec.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places = Places::kFound);

}  // namespace shardinit
