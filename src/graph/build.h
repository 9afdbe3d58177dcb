// ModelSpec → InitGraph: repeats expanded, expressions evaluated, initializers
// bound, sharding resolved, layouts laid out.
#pragma once

#include <optional>
#include <string_view>

#include "base/diagnostics.h"
#include "graph/explanation.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

struct StepCost;  // autoshard/cost.h

// Reports everything that is wrong; the result is only to be used when
// `diagnostics` has no errors. Beyond this point no expression is evaluated
// and no name is looked up. `explanation`, if not null, tells about one tensor
// that is drawn, and one that `layout` stores. `layout` is one that the spec has, or empty: then
// what is drawn is stored. With `all_layouts` mistakes in the other layouts are reported, too; a
// layout may be none for the mesh at hand, and does no harm then if it is not chosen. `cost`, if
// not null, gets what the sharding of what is drawn costs; left empty if the spec does not say
// enough.
InitGraph BuildGraph(const ModelSpec& spec, Diagnostics& diagnostics,
                     Explanation* explanation = nullptr, std::string_view layout = {},
                     bool all_layouts = true, StepCost* cost = nullptr);

}  // namespace shardinit
