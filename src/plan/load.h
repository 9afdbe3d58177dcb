// Makes the plan of a spec: the first three steps of every command, spec → graph → plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "graph/engines/engines.h"
#include "plan/plan.h"
#include "spec/parse.h"

namespace shardinit {

struct Explanation;  // graph/explanation.h
struct StepCost;     // autoshard/cost.h

// A spec without mistakes may say something that is hardly meant: this says what becomes of it.
enum class Warnings { kIgnore, kReport, kDeny };

// The changes that a command line or a program may make to a spec.
struct PlanRequest {
  SpecRequest spec = {};
  std::optional<Replicas> replicas = {};
  std::string layout = {};          // Empty: the drawn tensors are stored as they are.
  bool layout_is_optional = false;  // So they are, too, if the spec has no such layout.
  bool all_layouts = false;         // Whether to report mistakes in the spec's other layouts.
  Places places = Places::kFound;
  Warnings warnings = Warnings::kIgnore;
  Explanation* explanation = nullptr;  // If not null, this receives the notes on one tensor.
  SourceOpener open_source = nullptr;  // null: a spec with sources cannot be loaded
  // If not null, this receives what the sharding costs in training; it stays empty if the spec does
  // not say enough.
  StepCost* cost = nullptr;
};

// Throws InvalidSpec with everything that is wrong; warnings that are
// not denied stay in `diagnostics`.
Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics);

// Returns the tensors whose paths match the pattern of `--only`, or all if it is empty. Throws
// Error (kUsage) if there are none.
std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only);

// Returns a hint for a path, or a pattern, with a number that no module has: the numbers that there
// are. Empty if that is not what is wrong.
std::string HintForNumber(const std::string& path, const std::vector<Tensor>& tensors);

// Returns a hint for a pattern that matches none of the tensors: a wider one that matches some, if
// it has more or fewer parts than paths have, else paths that are like it, as patterns.
std::string HintForPattern(const std::string& pattern, const std::vector<Tensor>& tensors);

}  // namespace shardinit
