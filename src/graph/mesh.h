// The mesh of a graph: its axes, and which devices have its places.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Reports mistakes in the axes, which count as of extent 1, and in slices and devices, which count
// as if there were none.
Mesh BindMesh(Building& building);

}  // namespace shardinit
