// Evaluates the `config` section of a spec: the values that the model's own code reads.
#pragma once

#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// Returns single-line JSON with sorted keys and evaluated expressions. Integers in `float_fields`
// become floats.
std::string BindConfig(const ConfigSpec::Map& config, const std::vector<std::string>& float_fields,
                       const Scope& names, Diagnostics& diagnostics);

}  // namespace shardinit
