// `plan --html`: a plan as a page of pictures.
#pragma once

#include <string>
#include <vector>

#include "plan/balance.h"
#include "report/facts.h"

namespace shardinit {

// Of a bounded size, and made in a bounded time after the outline of the tensors: what is left out
// for this is said in it.
std::string PlanPage(const Plan& plan, const Facts& facts, const std::vector<TensorKind>& kinds,
                     const Balance& balance);

}  // namespace shardinit
