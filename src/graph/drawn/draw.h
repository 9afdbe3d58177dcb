// The second pass: determines the shape, element type, initializer and key of each drawn tensor. It
// also binds `stage` (which ranks hold a tensor), because a stage may depend on the numbers of
// repeats. The next pass shards the tensors.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Fills the tensors' `fans` if `keeps_fans`.
WrittenTensors DrawTensors(Building& building, const Mesh& mesh, bool keeps_fans);

}  // namespace shardinit
