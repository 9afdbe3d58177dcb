// Binds tensors that have the values of other tensors.
#pragma once

#include <unordered_set>

#include "base/diagnostics.h"
#include "graph/building.h"

namespace shardinit {

// Returns whether one key gives both tensors the same values.
bool MadeAlike(const Tensor& a, const Tensor& b);

// Reports a tensor that has `tie` and a key of its own. A key of JAX or PyTorch may stand beside
// `tie` only in a repeat that is tied to its own first tensor.
void ReportKeyOfTie(const TensorSpec& spec, Diagnostics& diagnostics);

// Draws each tensor with a `tie` as the one that it names, which must have the same shape, dtype
// and distribution. A tensor may name itself: the first tensor of a repeat whose tensors are all
// tied to it does so, and has its own `key`.
void BindTies(WrittenTensors& drawn, Diagnostics& diagnostics);

// Returns the stored tensors whose elements equal those of an earlier one: they are tied to it, or
// are views of the same or of tied tensors.
std::unordered_set<const Tensor*> FindCopies(const InitGraph& graph);

}  // namespace shardinit
