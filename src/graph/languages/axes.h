// The logical axes that a spec names.
#pragma once

#include <set>
#include <string>

#include "spec/spec.h"

namespace shardinit {

// Returns the axes of all tensors, including those of layouts and those that are left out.
std::set<std::string> LogicalAxes(const ModelSpec& spec);

// Returns `a`, `[a, b]` or `null`, as a rule has it.
std::string InText(const AxisList& axes);

}  // namespace shardinit
