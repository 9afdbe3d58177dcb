// The plan of a checkpoint on another mesh, or cut in another way.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "plan/plan.h"

namespace shardinit {

// `mesh` is as in `fsdp=8,tensor=4`, of axes that the plan's mesh has; those left out get size 1
// and come last. Throws Error (kUsage) if it is none, if its axes do not divide a dimension that
// they cut, unless `allows_uneven`, or if tensors are pinned to indices of an axis that changes.
// Which devices have the places of the new mesh is not known.
Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven);

// With all that it stores cut as `sharding` says, a file or a word of the languages that specs
// have; `mesh` as above, or empty: as it was. `uneven` is a spec's, or empty. Names of logical axes
// are not known. Throws InvalidSpec, in which the plan is a spec of the name `path`.
Plan CutAs(const Plan& plan, const std::string& path, const std::string& mesh,
           const std::string& sharding, const std::string& uneven, Diagnostics& diagnostics);

}  // namespace shardinit
