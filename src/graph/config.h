// Binds `config` of a spec: the values that the model's own code reads.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// Returns JSON in one line with sorted keys and evaluated expressions.
std::string BindConfig(const ConfigSpec::Map& config, const Scope& names, Diagnostics& diagnostics);

}  // namespace shardinit
