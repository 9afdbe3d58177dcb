// What two plans make different, tensor by tensor, without making it.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// One thing that was one way and is another now, in words.
struct Change {
  std::string what;  // `values`, `dtype`, `shape`, `view`, `sharding`; of the plan, its keys.
  std::string before, after;
  bool operator==(const Change&) const = default;
};

struct TensorDifference {
  std::string path;
  bool before, after;           // Which plan has it.
  std::vector<Change> changes;  // If both have it.
};

struct PlanDifference {
  std::vector<Change> changes;  // Of name, seed, engine, mesh, replicas, layout.
  // In the order of `after`, then what only `before` has. With a layout on
  // either side the model's tensors apart from those that are stored.
  std::vector<TensorDifference> tensors, stored;
  int64_t equal = 0;  // Of `tensors`.

  bool empty() const { return changes.empty() && tensors.empty() && stored.empty(); }
};

// Equal distributions that are drawn from equal keys are equal values. The
// sharding is which box each rank holds, whatever the names of mesh axes.
PlanDifference Compare(const Plan& before, const Plan& after);

}  // namespace shardinit
