// Plans whose layout has values in another convention than the spec's.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// Throws Error (kUsage) if the layout has a tensor of a source in another convention: conversions
// alone change values, and the trainer would read another model.
void RequireConventions(const Plan& plan);

// Returns the stored tensors to which the trainer of the layout adds a number, so that what is
// drawn for them has another meaning there.
std::vector<std::string> ShiftedTensors(const Plan& plan);

}  // namespace shardinit
