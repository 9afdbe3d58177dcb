// Random elements of a box.
#pragma once

#include <cstdint>

#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

// Writes elements first … first + count - 1 of the box that `runs` describes,
// in the box's own row-major order, encoded as `dtype`.
void DrawBox(const Runs& runs, const Sampler& sampler, Stream stream, int64_t first, int64_t count,
             DType dtype, void* out);

}  // namespace shardinit
