// Converts words of MT19937 to f32 values as PyTorch's CPU generator does in whole groups. The
// formulas are templates over the number type (samplers-inl.h). Multiplications are fused where
// PyTorch's compiler fused them.

#if defined(SHARDINIT_TORCH_SAMPLERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDINIT_TORCH_SAMPLERS_INL
#undef SHARDINIT_TORCH_SAMPLERS_INL
#else
#define SHARDINIT_TORCH_SAMPLERS_INL
#endif

#include <cstdint>

#include "base/number.h"
#include "rng/torch_coefficients.h"

namespace SHARDINIT_FORMULAS::torch_samplers {

using namespace torch_coefficients;

template <typename F, typename U>
SHARDINIT_INLINE F Uniform24(U word) {
  return SignedToF32(word & 0xFFFFFFu) * 0x1p-24f;
}

// Returns the natural logarithm of a number from 2^-24 to 1, by Cephes' logf.
template <typename F>
SHARDINIT_INLINE F Log(F u) {
  const auto bits = BitsOf(u);
  const F part = FromBits((bits & 0x007FFFFFu) | 0x3F000000u);  // from 1/2 to 1
  const F exponent = SignedToF32(ShiftRight<23>(bits) - 126u);
  const auto below = part < kSqrtHalf;
  const F m = (part - 1.0f) + Select<F>(below, part, 0.0f);
  const F e = exponent - Select<F>(below, 1.0f, 0.0f);
  const F m2 = m * m;
  F y = kLog[0];
  for (int i = 1; i < 9; ++i) y = Fma(y, m, F(kLog[i]));
  y = y * m;
  const F low = e * kLn2Low;
  y = Fma(y, m2, low);
  y = Fma(m2, F(-0.5f), y);
  const F sum = m + y;
  return Fma(e, F(kLn2High), sum);
}

// Computes the sine and the cosine of an angle from 0 to 2 pi, by Cephes' sinf and cosf.
template <typename F>
struct SineAndCosine {
  F sine, cosine;
};
template <typename F>
SHARDINIT_INLINE SineAndCosine<F> SinCos(F angle) {
  const F octants = angle * kFourByPi;
  const auto quarter = (TruncatedToWord(octants) + 1u) & ~1u;
  const F turns = SignedToF32(quarter);
  F x = angle;
  for (const float part : kMinusQuarterPi) x = Fma(turns, F(part), x);
  const F x2 = x * x;

  F c = Fma(F(kCos[0]), x2, F(kCos[1]));
  c = Fma(c, x2, F(kCos[2]));
  c = c * x2;
  const F half = x2 * -0.5f;
  c = Fma(c, x2, half);
  c = c + 1.0f;
  F s = Fma(F(kSin[0]), x2, F(kSin[1]));
  s = Fma(s, x2, F(kSin[2]));
  s = s * x2;
  s = Fma(s, x, x);

  const auto swapped = IsSet<1>(quarter);
  return {NegateIfSet<2>(quarter, Select<F>(swapped, c, s)),
          NegateIfSet<2>(quarter + 2u, Select<F>(swapped, s, c))};
}

// Computes two numbers from two words. The words are eight places apart, and so are the numbers.
template <typename F>
struct Normals {
  F first, second;
};
template <typename F, typename U>
SHARDINIT_INLINE Normals<F> NormalsOf(float mean, float std, U word, U eighth) {
  const F u1 = 1.0f - Uniform24<F>(word);
  const F square = -2.0f * Log(u1);
  const F radius = Sqrt(square);
  const F angle = kTwoPi * Uniform24<F>(eighth);
  const SineAndCosine<F> turned = SinCos(angle);
  const F cosine = radius * turned.cosine, sine = radius * turned.sine;
  return {Fma(cosine, F(std), F(mean)), Fma(sine, F(std), F(mean))};
}

}  // namespace SHARDINIT_FORMULAS::torch_samplers

#endif
