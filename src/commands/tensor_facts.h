// What `explain` says of one tensor.
#pragma once

#include <cstdint>

#include "graph/explanation.h"
#include "plan/plan.h"
#include "report/facts.h"

namespace shardinit {

// The tensor that is explained.
struct Subject {
  const Plan& plan;
  const Explanation& why;
  const Tensor& tensor;
  int64_t rank;  // Whose box is shown.
};

// `matches` tensors have a path as the one that was asked for.
Facts FactsOf(const Subject& subject, int64_t matches);

}  // namespace shardinit
