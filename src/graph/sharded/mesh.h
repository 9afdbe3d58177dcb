// Binds the mesh of a graph: its axes and the device at each place.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Reports errors. Treats a wrong axis as one of extent 1, and wrong slices and devices as absent.
Mesh BindMesh(Building& building);

}  // namespace shardinit
