// Applies a block of reflections to columns. The template parameter V is an f64 number, or a vector
// of f64 numbers with a column in each lane.

// This file is compiled once, and for vectors once per instruction set (hwy/foreach_target.h).
#if defined(SHARDINIT_REFLECTIONS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDINIT_REFLECTIONS_INL
#undef SHARDINIT_REFLECTIONS_INL
#else
#define SHARDINIT_REFLECTIONS_INL
#endif

#include <cstdint>

#include "base/number.h"
#include "rng/orthogonal.h"

namespace SHARDINIT_FORMULAS::reflections {

SHARDINIT_INLINE double Load(const double* from, double) { return *from; }
SHARDINIT_INLINE void Store(double x, double* to) { *to = x; }

// `vectors` holds the block's vectors as `height` rows of eight. `q` holds the same rows of the
// columns, with `lanes` numbers in each row.
template <class V, class X>
SHARDINIT_INLINE void Reflect(const ReflectionBlock& block, const X* vectors, int64_t height,
                              int64_t lanes, double* q) {
  V s[kReflections] = {V(0), V(0), V(0), V(0), V(0), V(0), V(0), V(0)};
  for (int64_t i = 0; i < height; ++i) {
    const X* const v = vectors + i * kReflections;
    const V x = Load(q + i * lanes, s[0]);
    for (int j = 0; j < kReflections; ++j) s[j] = s[j] + V(v[j]) * x;
  }
  // Computes s7 = scale7 y7, s6 = scale6 (y6 - p67 s7), … from y. Loops that count up are unrolled.
  constexpr int kLast = kReflections - 1;
  for (int m = 0; m <= kLast; ++m) {
    V& of_j = s[kLast - m];
    for (int l = 0; l < m; ++l) {
      of_j = of_j - V(block.products[kLast - m][kLast - l]) * s[kLast - l];
    }
    of_j = of_j * V(block.scale[kLast - m]);
  }
  for (int64_t i = 0; i < height; ++i) {
    const X* const v = vectors + i * kReflections;
    V x = Load(q + i * lanes, s[0]);
    for (int m = 0; m <= kLast; ++m) x = x - V(v[kLast - m]) * s[kLast - m];
    Store(x, q + i * lanes);
  }
}

}  // namespace SHARDINIT_FORMULAS::reflections

#endif
