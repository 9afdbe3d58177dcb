// The plan of a checkpoint on another mesh.
#pragma once

#include <string>

#include "plan/plan.h"

namespace shardinit {

// `mesh` is as in `fsdp=8,tensor=4`, of axes that the plan's mesh has; those left out get size 1
// and come last. Throws Error (kUsage) if it is none, if its axes do not divide a dimension that
// they cut, unless `allows_uneven`, or if tensors are pinned to indices of an axis that changes.
// Which devices have the places of the new mesh is not known.
Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven);

}  // namespace shardinit
