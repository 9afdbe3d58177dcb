// Converts random words to f32 values. The formulas are templates over the number type F: `float`,
// vectors of it (kernels/number-inl.h), or a type that writes the same operations into a program.
//
// Parentheses and statements give the order of operations. Each operation rounds once to f32. These
// rules make the bits the same on all machines:
//
// - Multiply-add is never fused (the build uses -ffp-contract=off).
// - The only libm function is sqrt, which IEEE 754 requires to be correctly rounded.
// - Integers become f32 by rounding to nearest even.
// - Within the limits in sampler.h, the only subnormal results are products in polynomials (such as
//   y^2 of an angle of 2^-31). Each is immediately added to a number more than 2^60 times as large,
//   so flushing it to 0 changes nothing.

// This file is compiled once, and for vectors once per instruction set (hwy/foreach_target.h).
#if defined(SHARDINIT_SAMPLERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDINIT_SAMPLERS_INL
#undef SHARDINIT_SAMPLERS_INL
#else
#define SHARDINIT_SAMPLERS_INL
#endif

#include <cstdint>

#include "base/number.h"
#include "rng/coefficients.h"

namespace SHARDINIT_FORMULAS::samplers {

using namespace coefficients;

// Computes c0 + c1 x + c2 x^2 + …, in pairs of pairs (Estrin's scheme). The longest chain of
// dependent operations is less than half as long as in Horner's scheme, for two more
// multiplications. More independent work keeps the processor busy.
template <typename F>
SHARDINIT_INLINE F Polynomial(const float* c, F x, F x2) {
  const F low = c[0] + (c[1] * x);
  const F high = c[2] + (c[3] * x);
  return low + (high * x2);
}

template <typename F>
SHARDINIT_INLINE F Polynomial(const float (&c)[4], F x) {
  return Polynomial(c, x, x * x);
}

template <typename F>
SHARDINIT_INLINE F Polynomial(const float* c, F x, F x2, F x4) {
  const F low = Polynomial(c, x, x2);
  const F high = Polynomial(c + 4, x, x2);
  return low + (high * x4);
}

template <typename F>
SHARDINIT_INLINE F Polynomial(const float (&c)[8], F x) {
  const F x2 = x * x;
  return Polynomial(c, x, x2, x2 * x2);
}

template <typename F>
SHARDINIT_INLINE F Polynomial(const float (&c)[9], F x) {
  const F x2 = x * x;
  const F x4 = x2 * x2;
  return Polynomial(c, x, x2, x4) + (c[8] * (x4 * x4));
}

// Returns -log2(x * 2^-scale). If `below` is 1, uses the next f32 below x instead of x.
//
// The bits of x minus the bits of 2/3 contain the exponent e in their upper part, and the
// mantissa's place in [2/3, 4/3) in their lower part. For x near 1, e is 0 and the polynomial alone
// gives the logarithm, so nothing cancels.
template <typename F>
SHARDINIT_INLINE F MinusLog2(F x, int scale, uint32_t below) {
  const auto shifted = BitsOf(x) - (kTwoThirds + (static_cast<uint32_t>(scale) << 23) + below);
  const F e = SignedToF32(ShiftSigned<23>(shifted));
  const F m = FromBits((shifted & 0x7FFFFF) + kTwoThirds);
  const F f = m - 1.0f;
  const F series = f * Polynomial(kLog, f);
  return series - e;
}

// In the functions below, Sampler is a sampler (sampler.h) or a type with the same members: numbers
// of a program, or types that describe properties of a sampler. U is a type of words.

template <typename F, typename Sampler, typename U>
SHARDINIT_INLINE F Uniform(const Sampler& s, U word) {
  const F scaled = Product(SignedToF32(ShiftRight<8>(word)), 0x1p-24f, s.span);
  const F value = s.low + scaled;
  return Min(value, s.last);
}

// Box and Muller, "A note on the generation of random normal deviates" (1958): a random radius and
// a random angle determine two independent normal numbers.
template <typename F, typename Sampler, typename U, typename B>
SHARDINIT_INLINE F Normal(const Sampler& s, U radius_word, U angle_word, B second) {
  // The word is a signed integer k. |k + 1/4| is (j + 1/2) / 2, with each j from 0 to 2^32 - 1
  // once. So u = |k + 1/4| * 2^-31 is (j + 1/2) * 2^-32, exact where it is small: the tail ends at
  // sqrt(2 * 33 ln 2) = 6.76. `below` = 1 keeps u below 1 and the radius above 0.
  const F k = SignedToF32(radius_word);
  const F u = Abs(F(k + 0.25f));
  const F radius = Sqrt(MinusLog2(u, 31, 1)) * s.scale;

  // The angle is in [-pi/4, pi/4). The word's two lowest bits then choose one of the four quarters
  // of the circle, by reflecting across each of two axes.
  const F x = SignedToF32(angle_word) * 0x1p-31f;
  const F y = x * x;
  const F sine = x * Polynomial(kSin, y);
  const F cosine = Polynomial(kCos, y);
  const F turned = NegateIfSet<1>(angle_word, cosine);
  const auto swapped = IsSet<0>(angle_word);
  const F product = radius * Select<F>(swapped != second, sine, turned);
  return product + s.mean;
}

// Returns z / (1 - 2q) for the quantile -z of q, from v = q(1 - q) (see coefficients.h).
template <typename F>
SHARDINIT_INLINE F QuantileRatio(F v) {
  // Even and odd powers of s are separate: s^2 is v, so the square root may finish later.
  const F s = Sqrt(v);
  const F n_even = kNumerator[0] + (v * (kNumerator[2] + (v * kNumerator[4])));
  const F n_odd = kNumerator[1] + (v * kNumerator[3]);
  const F d_even = kDenominator[0] + (v * (kDenominator[2] + v));
  const F d_odd = kDenominator[1] + (v * kDenominator[3]);
  const F n = n_even + (s * n_odd);
  const F d = d_even + (s * d_odd);
  const F central = n / d;
  if (!AnyLess(v, kCentralEnd)) return central;

  const F t = Sqrt(MinusLog2(v, 0, 0));
  const F inverse = 1.0f / t;
  const F r = inverse - kTailCentre;
  const F whole = kSqrt2Ln2 * t;
  const F tail = whole + Polynomial(kTail, r);
  return Select<F>(v >= kCentralEnd, central, tail);
}

template <typename F, typename Sampler, typename U>
SHARDINIT_INLINE F TruncatedNormal(const Sampler& s, U word) {
  const auto upper = IsSet<31>(word);
  const F place = SignedToF32(word & 0x7FFFFFFF);
  const F part = place * Select<F>(upper, s.step[1], s.step[0]);
  const F q = Select<F>(upper, s.tail[1], s.tail[0]) + part;
  const F p = 1.0f - q;
  const F x = p - q;
  const F distance = x * QuantileRatio(F(q * p));
  const auto sign = (word & s.sign_mask) ^ s.sign_flip;
  const F z = FromBits(BitsOf(distance) ^ sign);

  const F clamped = Min(Max(z, s.z_low), s.z_high);
  const F scaled = clamped * s.std;
  return scaled + s.mean;
}

}  // namespace SHARDINIT_FORMULAS::samplers

#endif
