// The numbers of jax_threefry that an expression takes by key, with jax_bits() and similar calls.
#pragma once

#include <optional>
#include <string>

#include "expr/program.h"
#include "init/distribution.h"
#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit {

// Returns an engine other than `engine` whose numbers the expression takes by key or by place; null
// if there is none.
const Engine* OtherEngine(const Distribution& distribution, const Engine& engine);

// Returns why JAX's numbers cannot be made; empty if they can, or if there are none.
std::string JaxRefusal(const Distribution& distribution);

// Both take a call that is not refused. The sampler is empty if its numbers are not JAX's.
std::optional<Sampler> JaxSamplerOf(const Program::PlacedCall& call);
Stream JaxStreamOf(const Program::PlacedCall& call);

}  // namespace shardinit
