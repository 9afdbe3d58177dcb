// Converts random words to f32 values as jax.random does. The formulas are templates over the
// number type. samplers-inl.h explains why the bits are the same on all machines.

#if defined(SHARDINIT_JAX_SAMPLERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDINIT_JAX_SAMPLERS_INL
#undef SHARDINIT_JAX_SAMPLERS_INL
#else
#define SHARDINIT_JAX_SAMPLERS_INL
#endif

#include <cstdint>

#include "base/number.h"
#include "rng/coefficients.h"
#include "rng/sampler.h"
#include "rng/samplers-inl.h"

namespace SHARDINIT_FORMULAS::samplers {

// Returns a number in [low, low + span] with 23 random bits, the size of an f32's mantissa. XLA
// fuses the multiplication and the addition, so this also rounds once.
template <typename F, typename N, typename U>
SHARDINIT_INLINE F JaxUniform(N low, N span, U word) {
  return FusedProductPlus(SignedToF32(ShiftRight<9>(word)), 0x1p-23f, span, low);
}

// The lowest uniform number of jax.random.normal, which is the next f32 above -1. The numbers
// extend up to 1, and each is exact.
inline constexpr float kJaxNormalLow = -0x1.fffffep-1f;

template <typename F, typename U>
SHARDINIT_INLINE F JaxNormalUniform(U word) {
  const F u = SignedToF32(ShiftRight<9>(word)) * 0x1p-22f;
  return u + kJaxNormalLow;
}

template <typename F>
SHARDINIT_INLINE F Horner(const float (&c)[9], F x) {
  F sum = c[8];
  for (int i = 8; i-- > 0;) {
    const F product = sum * x;
    sum = c[i] + product;
  }
  return sum;
}

// Returns sqrt(2) erf_inv(u), -1 <= u <= 1 (see coefficients.h).
template <typename F>
SHARDINIT_INLINE F JaxStandardNormal(F u) {
  const F square = u * u;
  const F rest = 1.0f - square;
  const F w = MinusLog2(rest, 0, 0) * kLn2;
  F ratio = Horner(kErfInvCentral, F(w - 2.5f));
  if (!AllLess(w, kErfInvCentralEnd)) {
    const F root = Sqrt(w);
    const F tail = Horner(kErfInvTail, F(root - 3.0f));
    const F far = Select<F>(rest == 0.0f, kErfInvOne, tail);
    ratio = Select<F>(w < kErfInvCentralEnd, ratio, far);
  }
  const F erf_inv = ratio * u;
  return erf_inv * kSqrt2;
}

// Returns the value that each sampler computes from a word.

template <typename F, typename U>
SHARDINIT_INLINE F Jax(const BitsSampler&, U word) {
  return FromBits(word);
}

template <typename F, typename N, typename W, typename U>
SHARDINIT_INLINE F Jax(const UniformSamplerOf<N, W>& s, U word) {
  return JaxUniform<F>(s.low, s.span, word);
}

template <typename F, typename N, typename W, typename U>
SHARDINIT_INLINE F Jax(const NormalSamplerOf<N, W>& s, U word) {
  const F z = JaxStandardNormal<F>(JaxNormalUniform<F>(word));
  const F scaled = z * s.std;
  return scaled + s.mean;
}

template <typename F, typename N, typename W, typename U>
SHARDINIT_INLINE F Jax(const TruncatedNormalSamplerOf<N, W>& s, U word) {
  const F z = JaxStandardNormal<F>(JaxUniform<F>(s.erf_low, s.erf_span, word));
  const F clamped = Min(Max(z, s.inside_low), s.inside_high);
  const F scaled = clamped * s.std;
  return scaled + s.mean;
}

}  // namespace SHARDINIT_FORMULAS::samplers

#endif
