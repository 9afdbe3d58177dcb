// Rules over all tensors together.
#pragma once

#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"

namespace shardinit {

// Paths are unique, none is both a tensor and a group of others, and no two
// random tensors share a stream. `places[i]` is where tensor i was written.
void ValidateTensors(const std::vector<Tensor>& tensors, const std::vector<Span>& places,
                     Diagnostics& diagnostics);

}  // namespace shardinit
