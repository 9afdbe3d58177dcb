// The second pass: shapes, element types, initializers and keys of the drawn tensors. The next pass
// decides how tensors are sharded; this one binds `stage` (which ranks hold a tensor), because a
// stage may depend on the numbers of repeats.
#pragma once

#include "graph/building.h"

namespace shardinit {

// `keeps_fans`: fills the tensors' `fans`.
WrittenTensors DrawTensors(Building& building, const Mesh& mesh, bool keeps_fans);

}  // namespace shardinit
