// Binds tensors that hold norms of the elements of other tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardinit {

// Why a tensor cannot hold the norms of another, and how to fix it.
struct NormProblem {
  std::string message, hint;
};

// Returns the shape of a tensor of norms with all dimensions of the measured tensor: missing
// trailing dimensions have extent 1.
Shape WholeShapeOfNorms(Shape norms, const Shape& measured);

// Links each tensor of norms to the tensor that it measures, whose stream must be known. Calls
// `report` with the index of each tensor of norms that cannot be linked.
void BindNorms(std::vector<Tensor>& tensors,
               const std::function<void(size_t, const NormProblem&)>& report);

}  // namespace shardinit
