// Binds the mesh of a graph: its axes, and the device at each place.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Reports mistakes. A wrong axis counts as one of extent 1; wrong slices and devices count as
// absent.
Mesh BindMesh(Building& building);

}  // namespace shardinit
