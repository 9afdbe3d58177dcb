// Checks plans whose layout stores values in a different convention than the spec.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// Throws Error (kUsage) if the layout stores a source's tensor in a different convention. Only
// conversions change values, so the trainer would read a different model.
void RequireConventions(const Plan& plan);

// Returns the stored tensors to which the layout's trainer adds a number, so that their drawn
// values mean something else there.
std::vector<std::string> ShiftedTensors(const Plan& plan);

}  // namespace shardinit
