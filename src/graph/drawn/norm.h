// Binds tensors that hold norms of the elements of other tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardinit {

// Why a tensor cannot hold its norms, and what to do about it.
struct NormProblem {
  std::string message, hint;
};

// Returns the shape of a tensor of norms with all dimensions of the tensor that is measured: those
// that are missing at the end have the extent 1.
Shape WholeShapeOfNorms(Shape norms, const Shape& measured);

// Gives each tensor of norms the tensor that it measures, whose stream must be known. Calls
// `report` with the index of each tensor of norms that gets none.
void BindNorms(std::vector<Tensor>& tensors,
               const std::function<void(size_t, const NormProblem&)>& report);

}  // namespace shardinit
