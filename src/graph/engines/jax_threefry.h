// The keys and numbers of jax_threefry: a tensor's key derived as JAX derives keys, from a seed by
// splits and folds, and the numbers that an expression takes by key, with jax_bits() and the like.
#pragma once

#include <cstdint>
#include <optional>

#include "base/diagnostics.h"
#include "graph/engines/engines.h"
#include "rng/sampler.h"
#include "spec/spec.h"

namespace shardinit {

extern const GraphEngine kGraphJaxThreefry;

// Returns the stream's key, or nothing after reporting a mistake.
std::optional<uint64_t> EvaluateJaxKey(const JaxKeySpec& spec, const Scope& names,
                                       Diagnostics& diagnostics);

// Both take a call of one of the engine's functions that is not refused.
Sampler JaxSamplerOf(const Program::PlacedCall& call);
Stream JaxStreamOf(const Program::PlacedCall& call);

}  // namespace shardinit
