// Turns a ModelSpec into an InitGraph: expands repeats, evaluates expressions, binds initializers,
// resolves sharding and lays out layouts.
#pragma once

#include <string_view>

#include "base/diagnostics.h"
#include "graph/engines/engines.h"
#include "graph/graph.h"
#include "spec/spec.h"

namespace shardinit {

struct Explanation;  // graph/explanation.h
struct StepCost;     // autoshard/cost.h

struct BuildRequest {
  std::string_view layout =
      {};  // a layout of the spec; empty: tensors are stored as they are drawn
  // Also report errors in the other layouts. A layout that does not suit this mesh is harmless
  // unless it is chosen.
  bool all_layouts = true;
  Places places = Places::kFound;
  // Warn about valid specs that are probably not intended.
  bool warns = false;
  // If not null, receives notes on one drawn tensor and on one tensor that `layout` stores.
  Explanation* explanation = nullptr;
  SourceOpener open_source = nullptr;  // null: sources cannot be opened
  // If not null, receives the cost of the drawn tensors' sharding. Stays empty if the spec does not
  // provide enough facts.
  StepCost* cost = nullptr;
};

// Reports all errors; the result is valid only if `diagnostics` has none. Later stages do not
// evaluate expressions or look up names.
InitGraph BuildGraph(const ModelSpec& spec, const BuildRequest& request, Diagnostics& diagnostics);

}  // namespace shardinit
