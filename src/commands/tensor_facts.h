// Collects the facts that `explain` reports of one tensor.
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
  int64_t rank;  // the rank whose box is shown
};

// `matches` is the number of tensors whose paths match the one that was asked for.
Facts FactsOf(const Subject& subject, int64_t matches);

}  // namespace shardinit
