// Shows a plan as a page of pictures, for `plan --html`.
#pragma once

#include <string>
#include <vector>

#include "plan/balance.h"
#include "report/facts.h"

namespace shardinit {

// The page has a bounded size, and is made in a bounded time after the outline of the tensors; it
// says what is left out for this.
std::string PlanPage(const Plan& plan, const Facts& facts, const std::vector<TensorKind>& kinds,
                     const Balance& balance);

}  // namespace shardinit
