// Binds `config` of a spec: the values that the model's own code reads.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// Returns JSON in one line with sorted keys and evaluated expressions. Whole numbers become floats
// in `float_fields`.
std::string BindConfig(const ConfigSpec::Map& config, const std::vector<std::string>& float_fields,
                       const Scope& names, Diagnostics& diagnostics);

}  // namespace shardinit
