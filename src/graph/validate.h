// Rules on tensors: on one, and over all together.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

// What values of the distribution do that an element of the type cannot ("reach
// 70000, but f16 ends at 65504"), and what to do; both empty if nothing. Elements
// of an expression are checked one by one when they are made.
struct Misfit {
  std::string what, hint;
};
Misfit MisfitOf(const Distribution& distribution, DType dtype);
// Why a tensor cannot be padded by a number; empty: it can.
std::string MisfitOfPadding(double value, DType dtype);

// Paths are unique, none is both a tensor and a group of others, and no two
// random tensors share a stream, but those that are tied (`graph/tie.h`). `*places[i]` is where
// tensor i was written, `specs` what was; empty where that is not known: then what is made in
// the same way may be tied.
void ValidateTensors(const std::vector<Tensor>& tensors, const std::vector<const Span*>& places,
                     const std::vector<const TensorSpec*>& specs, Diagnostics& diagnostics);

}  // namespace shardinit
