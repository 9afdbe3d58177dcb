// Turns a ModelSpec into an InitGraph: expands repeats, evaluates expressions, binds initializers,
// resolves sharding and lays out layouts.
#pragma once

#include <optional>
#include <string_view>

#include "base/diagnostics.h"
#include "graph/engines/streams.h"
#include "graph/explanation.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

struct StepCost;  // autoshard/cost.h

// Reports all mistakes; the result is only valid if `diagnostics` has no errors. Later stages
// evaluate no expression and look up no name.
// If `explanation` is not null, it gets the notes on one drawn tensor and on one that `layout`
// stores. `layout` names a layout of the spec; if it is empty, the drawn tensors are stored as they
// are. `all_layouts` also reports mistakes in the other layouts; a layout that does not suit the
// mesh at hand does no harm unless it is chosen. If `cost` is not null, it gets the cost of the
// sharding of the drawn tensors, or stays empty if the spec does not say enough.
InitGraph BuildGraph(const ModelSpec& spec, Diagnostics& diagnostics,
                     Explanation* explanation = nullptr, std::string_view layout = {},
                     bool all_layouts = true, StepCost* cost = nullptr,
                     Places places = Places::kFound);

}  // namespace shardinit
