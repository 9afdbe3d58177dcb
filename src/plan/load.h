// Makes the plan of a spec, the first three steps of every command: spec → graph → plan.
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

// How to treat valid specs that are probably not intended.
enum class Warnings { kIgnore, kReport, kDeny };

// The changes that a command line or a program can make to a spec.
struct PlanRequest {
  SpecRequest spec = {};
  std::optional<Replicas> replicas = {};
  std::string layout = {};          // empty: store the drawn tensors as they are
  bool layout_is_optional = false;  // treat a layout that the spec lacks as empty
  bool all_layouts = false;         // whether to report errors in the spec's other layouts
  Places places = Places::kFound;
  Warnings warnings = Warnings::kIgnore;
  Explanation* explanation = nullptr;  // if not null, receives the notes on one tensor
  SourceOpener open_source = nullptr;  // null: specs with sources cannot be loaded
  // If not null, receives the training cost of the sharding. Stays empty if the spec lacks facts
  // for the cost.
  StepCost* cost = nullptr;
};

// Throws InvalidSpec with all errors. Warnings that are not denied stay in `diagnostics`.
Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics);

// Returns the tensors whose paths match the pattern `only`, or all tensors if it is empty. Throws
// Error (kUsage) if no tensor matches.
std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only);

// Returns a hint for a path or pattern with a number that its module does not have: the range of
// existing numbers. Returns an empty string if another part is wrong.
std::string HintForNumber(const std::string& path, const std::vector<Tensor>& tensors);

// Returns a hint for a pattern that matches no tensor. If the pattern has more or fewer parts than
// paths have, suggests a wider pattern; otherwise suggests similar paths, as patterns.
std::string HintForPattern(const std::string& pattern, const std::vector<Tensor>& tensors);

}  // namespace shardinit
