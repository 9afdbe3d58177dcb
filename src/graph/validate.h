// Validates tensors, one by one and all together.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

// `what` describes how values of the distribution do not fit the type ("reach 70000, but f16 ends
// at 65504"), and `hint` how to fix it. Both are empty if they fit. Elements of an expression are
// checked when they are generated.
struct Misfit {
  std::string what, hint;
};
Misfit MisfitOf(const Distribution& distribution, DType dtype);
// Returns why a tensor cannot be padded with a number; empty if it can.
std::string MisfitOfPadding(double value, DType dtype);

// Checks that paths are unique and that no path is both a tensor and a group of tensors. Checks
// that no two random tensors share a stream unless they are tied (`graph/drawn/tie.h`).
// `*places[i]` is where tensor i was written, and `specs[i]` its spec. If `specs` is empty, tensors
// that are made alike may be tied.
void ValidateTensors(const std::vector<Tensor>& tensors, const std::vector<const Span*>& places,
                     const std::vector<const TensorSpec*>& specs, Diagnostics& diagnostics);

}  // namespace shardinit
