// What an expression takes of jax_threefry by its key, with jax_bits() and the like.
#pragma once

#include <optional>
#include <string>

#include "expr/program.h"
#include "init/distribution.h"
#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit {

// The engine other than this one whose numbers an expression takes by their place; null: none.
const Engine* OtherEngine(const Distribution& distribution, const Engine& engine);

// Why these numbers cannot be made; empty: they can, or are not JAX's.
std::string JaxRefusal(const Distribution& distribution);

// Of a call that is not refused; null: its numbers are not JAX's.
std::optional<Sampler> JaxSamplerOf(const Program::PlacedCall& call);
Stream JaxStreamOf(const Program::PlacedCall& call);

}  // namespace shardinit
