// Makes the plan of a checkpoint on another mesh, or with another sharding.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "plan/plan.h"

namespace shardinit {

// Moves a plan to another mesh. `mesh` has the form `fsdp=8,tensor=4` and names axes of the plan's
// mesh; omitted axes get size 1 and come last. The new mesh has no device layout unless it equals
// the plan's mesh.
//
// Throws Error (kUsage) if `mesh` is malformed, if its axes do not divide a dimension that they
// shard (unless `allows_uneven`), or if tensors are pinned to indices of a changed axis.
// `hint_for_uneven` explains how to allow uneven parts.
Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven,
            const std::string& hint_for_uneven);

// Shards every stored tensor by `sharding`, a file or a word in one of the sharding languages of
// specs. `mesh` is as above; if it is empty, the mesh stays. `uneven` is as in a spec, or empty.
// Names of logical axes are not available. Throws InvalidSpec, whose messages treat the plan as a
// spec named `path`.
Plan ShardAs(const Plan& plan, const std::string& path, const std::string& mesh,
             const std::string& sharding, const std::string& uneven, Diagnostics& diagnostics);

}  // namespace shardinit
