// Makes the plan of a spec: the first three steps of every command, spec → graph → plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "graph/engines/streams.h"
#include "graph/explanation.h"
#include "plan/plan.h"
#include "spec/parse.h"

namespace shardinit {

struct StepCost;  // autoshard/cost.h

// The changes that a command line or a program may make to a spec.
struct PlanRequest {
  SpecRequest spec;
  std::optional<Replicas> replicas;
  std::string layout;        // Empty: the drawn tensors are stored as they are.
  bool all_layouts = false;  // Whether to report mistakes in the other layouts.
  Places places = Places::kFound;
};

// Throws InvalidSpec with everything that is wrong; warnings stay in `diagnostics`. If not null,
// `explanation` receives the notes on one tensor, and `cost` what the sharding costs in training;
// `cost` stays empty if the spec does not say enough.
Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics,
              Explanation* explanation = nullptr, StepCost* cost = nullptr);

// Returns the tensors whose paths match the pattern of `--only`, or all if it is empty. Throws
// Error (kUsage) if there are none.
std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only);

// Returns a hint for a pattern that matches none of the tensors: a wider one that matches some, if
// it has more or fewer parts than paths have, else paths that are like it, as patterns.
std::string HintForPattern(const std::string& pattern, const std::vector<Tensor>& tensors);

}  // namespace shardinit
