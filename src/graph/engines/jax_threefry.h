// The keys and numbers of engine jax_threefry. Derives a tensor's key from a seed by splits and
// folds, as JAX does, and samples the numbers that expressions take by key with jax_bits() etc.
#pragma once

#include <cstdint>
#include <optional>

#include "base/diagnostics.h"
#include "graph/engines/engines.h"
#include "rng/sampler.h"
#include "spec/spec.h"

namespace shardinit {

extern const GraphEngine kGraphJaxThreefry;

// Returns the stream's key, or nothing after reporting an error.
std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics);

// Both functions require a call of one of this engine's functions that is not refused.
Sampler JaxSamplerOf(const Program::PlacedCall& call);
Stream JaxStreamOf(const Program::PlacedCall& call);

}  // namespace shardinit
