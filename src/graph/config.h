// `config` of a spec: what the model's own code is told of it.
#pragma once

#include <string>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// JSON in one line with sorted keys, expressions evaluated.
std::string BindConfig(const ConfigSpec::Map& config, const Scope& names, Diagnostics& diagnostics);

}  // namespace shardinit
