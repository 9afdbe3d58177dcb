// Tensors that are norms of the elements of others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardinit {

// Why a tensor cannot hold the norms that it should, and what to do.
struct NormProblem {
  std::string message, hint;
};

// Gives each norm of a model's tensors the tensor that it is of, whose stream is known. `report`
// gets the number of each that has none.
void BindNorms(std::vector<Tensor>& tensors,
               const std::function<void(size_t, const NormProblem&)>& report);

}  // namespace shardinit
