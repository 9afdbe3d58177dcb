// Tensors that have the values of others.
#pragma once

#include <unordered_set>

#include "base/diagnostics.h"
#include "graph/building.h"

namespace shardinit {

// Whether one key gives two tensors the same values.
bool MadeAlike(const Tensor& a, const Tensor& b);

// A tensor that is tied has a key of its own, and is no part of a repeat that begins with it.
void ReportKeyOfTie(const TensorSpec& spec, Diagnostics& diagnostics);

// Draws each tensor with a `tie` as the one that it names, which must be made alike. A tensor may
// name itself, as the first of a repeat does in which all are tied to it, and then has its `key`.
void BindTies(WrittenTensors& drawn, Diagnostics& diagnostics);

// Of what is stored, the tensors with the same elements as one before them: tied to that, or views
// of the same or of tied tensors.
std::unordered_set<const Tensor*> FindCopies(const InitGraph& graph);

}  // namespace shardinit
