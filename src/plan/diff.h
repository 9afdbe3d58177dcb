// Compares the values and shardings of two plans, tensor by tensor, without making them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// One property that differs between the plans, in words.
struct Change {
  // `values`, `dtype`, `shape`, `view` or `sharding`; for a change of the plan, its key.
  std::string what;
  std::string before, after;
  bool operator==(const Change&) const = default;
};

struct TensorDifference {
  std::string path;
  bool before, after;           // Whether each plan has the tensor.
  std::vector<Change> changes;  // The changes, if both plans have it.
};

struct PlanDifference {
  std::vector<Change> changes;  // changes of name, seed, engine, mesh, replicas and layout
  // Tensors stand in the order of `after`, followed by those that only `before` has. If either plan
  // has a layout, `tensors` are the model's and `stored` those in files.
  std::vector<TensorDifference> tensors, stored;
  int64_t equal = 0;  // the number of equal ones among `tensors`

  bool empty() const { return changes.empty() && tensors.empty() && stored.empty(); }
};

// Equal distributions that are drawn from equal keys are equal values. The sharding is which box
// each rank holds, whatever the names of mesh axes. Of tensors, only those are compared whose paths
// match the pattern `only`, if it is not empty.
PlanDifference Compare(const Plan& before, const Plan& after, std::string_view only = {});

}  // namespace shardinit
