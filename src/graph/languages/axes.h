// The logical axes that a spec names.
#pragma once

#include <set>
#include <string>

#include "spec/spec.h"

namespace shardinit {

// Of all tensors, those of layouts and those that are left out included.
std::set<std::string> LogicalAxes(const ModelSpec& spec);

// `a`, `[a, b]` or `null`, as in a rule.
std::string InText(const AxisList& axes);

}  // namespace shardinit
