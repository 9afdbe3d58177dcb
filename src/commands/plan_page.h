// Renders a plan as an HTML page of pictures, for `plan --html`.
#pragma once

#include <string>
#include <vector>

#include "plan/balance.h"
#include "report/facts.h"

namespace shardinit {

// The page has a bounded size, and notes its omissions. After the outline of the tensors, it takes
// a bounded time.
std::string PlanPage(const Plan& plan, const Facts& facts, const std::vector<TensorKind>& kinds,
                     const Balance& balance);

}  // namespace shardinit
