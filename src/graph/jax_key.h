// A tensor's key that is derived as JAX derives keys: from a seed, by splits and folds.
#pragma once

#include <cstdint>
#include <optional>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// The stream's key; nothing if something in it is wrong, which is reported.
std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics);

}  // namespace shardinit
