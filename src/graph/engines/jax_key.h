// A tensor's key derived as JAX derives keys: from a seed, by splits and folds.
#pragma once

#include <cstdint>
#include <optional>

#include "base/diagnostics.h"
#include "expr/expr.h"
#include "spec/spec.h"

namespace shardinit {

// Returns the stream's key, or nothing after reporting a mistake.
std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics);

}  // namespace shardinit
