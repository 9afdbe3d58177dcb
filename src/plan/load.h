// The first three steps of everything: spec → graph → plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "graph/explanation.h"
#include "plan/plan.h"
#include "spec/parse.h"

namespace shardinit {

struct StepCost;  // autoshard/cost.h

// What a command line or a program may change about a spec.
struct PlanRequest {
  SpecRequest spec;
  std::optional<Replicas> replicas;
  std::string layout;        // Empty: what is drawn is stored as it is.
  bool all_layouts = false;  // Whether to report mistakes in the others.
};

// Throws InvalidSpec with everything that is wrong; warnings stay in `diagnostics`.
// `explanation`, if not null, tells about one tensor, and `cost` what the sharding costs in
// training; left empty if the spec does not say enough.
Plan LoadPlan(const PlanRequest& request, Diagnostics& diagnostics,
              Explanation* explanation = nullptr, StepCost* cost = nullptr);

// The tensors whose paths match the pattern of `--only`; all, if it is empty. Throws Error (kUsage)
// if there are none.
std::vector<const Tensor*> Matching(const std::vector<Tensor>& tensors, const std::string& only);

}  // namespace shardinit
