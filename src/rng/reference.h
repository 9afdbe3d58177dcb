// Defines the contract of values as readable code, with Philox4x32: one element at a time, one IEEE
// operation per statement. Tests compare the kernels with it bit for bit.
#pragma once

#include <cstdint>

#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit {

// Returns word (element mod 4) of block (element div 4).
uint32_t Word(Stream stream, uint64_t element);

float Sample(const Sampler& sampler, Stream stream, uint64_t element);

}  // namespace shardinit
