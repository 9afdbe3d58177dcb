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
  // Also report mistakes in the other layouts. A layout that does not suit the mesh at hand does no
  // harm unless it is chosen.
  bool all_layouts = true;
  Places places = Places::kFound;
  // Also report what is probably not meant, if there is no mistake.
  bool warns = false;
  // If not null, this gets the notes on one drawn tensor and on one that `layout` stores.
  Explanation* explanation = nullptr;
  SourceOpener open_source = nullptr;  // null: sources cannot be opened
  // If not null, this gets the cost of the sharding of the drawn tensors, or stays empty if the
  // spec does not say enough.
  StepCost* cost = nullptr;
};

// Reports all mistakes; the result is only valid if `diagnostics` has no errors. Later stages
// evaluate no expression and look up no name.
InitGraph BuildGraph(const ModelSpec& spec, const BuildRequest& request, Diagnostics& diagnostics);

}  // namespace shardinit
