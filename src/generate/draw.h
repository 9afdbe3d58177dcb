// Draws the random elements of runs.
#pragma once

#include <cstdint>

#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

// Elements drawn or computed at a time: few enough for an expression's slots to stay in the
// first-level cache, enough to hide the cost of choosing an operation.
inline constexpr int64_t kTile = 512;

// Writes elements first … first + count - 1 of the runs, one run after another, encoded as `dtype`.
void DrawRuns(const Runs& runs, const Sampler& sampler, Stream stream, int64_t first, int64_t count,
              DType dtype, void* out);

}  // namespace shardinit
