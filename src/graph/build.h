// ModelSpec → InitGraph: repeats expanded, expressions evaluated, initializers
// bound, sharding resolved.
#pragma once

#include "base/diagnostics.h"
#include "graph/explanation.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

// Reports everything that is wrong; the result is only to be used when
// `diagnostics` has no errors. Beyond this point no expression is evaluated
// and no name is looked up. `explanation`, if not null, tells about one tensor.
InitGraph BuildGraph(const ModelSpec& spec, Diagnostics& diagnostics,
                     Explanation* explanation = nullptr);

}  // namespace shardinit
