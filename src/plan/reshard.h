// Makes the plan of a checkpoint on another mesh, or with another sharding.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "plan/plan.h"

namespace shardinit {

// `mesh` has the form `fsdp=8,tensor=4` and names axes of the plan's mesh; axes that it leaves out
// get size 1 and come last. Throws Error (kUsage) if `mesh` has another form, if its axes do not
// divide a dimension that they shard, unless `allows_uneven`, or if tensors are pinned to indices
// of an axis that changes. The hint says how uneven parts may be had. The new mesh has no device
// layout unless it equals the plan's.
Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven,
            const std::string& hint_for_uneven);

// Shards every stored tensor as `sharding` says, which is a file or a word of the languages that
// specs have. `mesh` is as above; if it is empty, the mesh stays. `uneven` is as in a spec, or
// empty. Names of logical axes are not known. Throws InvalidSpec, whose messages call the plan a
// spec named `path`.
Plan ShardAs(const Plan& plan, const std::string& path, const std::string& mesh,
             const std::string& sharding, const std::string& uneven, Diagnostics& diagnostics);

}  // namespace shardinit
