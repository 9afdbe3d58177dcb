// Binds tensors that share the values of other tensors.
#pragma once

#include <unordered_set>

#include "base/diagnostics.h"
#include "graph/building.h"

namespace shardinit {

// Returns whether one key gives both tensors the same values.
bool MadeAlike(const Tensor& a, const Tensor& b);

// Reports a tensor that has both `tie` and its own key. A JAX or PyTorch key may accompany `tie`
// only in a repeat that is tied to its own first tensor.
void ReportKeyOfTie(const TensorSpec& spec, Diagnostics& diagnostics);

// Draws each tensor that has a `tie` like the tensor it names, which must have the same shape,
// dtype and distribution. A tensor may name itself: if all tensors of a repeat are tied to the
// first, the first does so and has its own `key`.
void BindTies(WrittenTensors& drawn, Diagnostics& diagnostics);

// Returns the stored tensors whose elements equal an earlier tensor's: they are tied to it, or are
// views of the same or of tied tensors.
std::unordered_set<const Tensor*> FindCopies(const InitGraph& graph);

}  // namespace shardinit
