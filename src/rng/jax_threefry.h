// Generates JAX's random numbers with partitionable Threefry2x32, the default since JAX 0.5. This
// is readable code: one element at a time, one IEEE operation per statement. Tests compare the
// kernels with it bit for bit. A stream's key consists of the two words of JAX's key, the low half
// first.
#pragma once

#include <cstdint>

#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit::jax_threefry {

// Return jax.random.key(seed), split(key, n)[index] for any n > index (row-major for a shape), and
// fold_in.
uint64_t KeyOfSeed(uint64_t seed);
uint64_t SplitKey(uint64_t key, uint64_t index);
uint64_t FoldIn(uint64_t key, uint32_t data);

// Returns the key of a stream's draw: the stream's own for draw 0, otherwise fold_in(key, draw).
uint64_t KeyOfDraw(const Stream& stream);

// Returns an element of jax.random.bits(key, shape, "uint32").
uint32_t Word(const Stream& stream, uint64_t element);

float Sample(const Sampler& sampler, const Stream& stream, uint64_t element);

}  // namespace shardinit::jax_threefry
