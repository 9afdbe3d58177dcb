// Compares the values and shardings of two plans tensor by tensor, without generating values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// A property that differs between the plans, in words.
struct Change {
  // `values`, `dtype`, `shape`, `view` or `sharding`; for a change of the plan itself, its key.
  std::string what;
  std::string before, after;
  bool operator==(const Change&) const = default;
};

struct TensorDifference {
  std::string path;
  bool before, after;           // which of the plans have the tensor
  std::vector<Change> changes;  // empty unless both plans have the tensor
};

struct PlanDifference {
  std::vector<Change> changes;  // changes of name, seed, engine, mesh, replicas and layout
  // In the order of `after`, followed by tensors that only `before` has. If either plan has a
  // layout, `tensors` are the model's tensors and `stored` the tensors in files.
  std::vector<TensorDifference> tensors, stored;
  int64_t equal = 0;  // number of equal tensors among the model's

  bool empty() const { return changes.empty() && tensors.empty() && stored.empty(); }
};

// Compares two plans. Equal distributions drawn from equal keys are equal values. Shardings are
// equal if each rank holds the same boxes, whatever the names of mesh axes. If `only` is not empty,
// compares only tensors whose paths match this pattern.
PlanDifference Compare(const Plan& before, const Plan& after, std::string_view only = {});

}  // namespace shardinit
