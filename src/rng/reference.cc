#include "rng/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>

#include "base/overloaded.h"
#include "rng/coefficients.h"
#include "rng/engines.h"
#include "rng/philox4x32.h"

// Parentheses and statements give the order of operations; each is rounded once
// to f32. What makes the bits the same elsewhere:
//
// - no fused multiply-add (the build says -ffp-contract=off);
// - no function of libm but sqrt, which IEEE 754 wants correctly rounded;
// - integers become f32 by rounding to nearest even;
// - within the limits in sampler.h the only subnormal results are products in
//   polynomials (y^2 of an angle of 2^-31, say), each added at once to a number
//   that is more than 2^60 times as large: flushed to 0 they change nothing.
static_assert(FLT_EVAL_METHOD == 0, "f32 operations must be rounded to f32");

namespace shardinit {
namespace {

using namespace coefficients;

// c0 + c1 x + c2 x^2 + …, in pairs of pairs (Estrin's scheme): the longest chain of
// operations that wait for each other is less than half of Horner's, for two more
// multiplications, and a processor is only as fast as it can find independent work.
float Polynomial(const float* c, float x, float x2) {
  const float low = c[0] + (c[1] * x);
  const float high = c[2] + (c[3] * x);
  return low + (high * x2);
}

float Polynomial(const float (&c)[4], float x) { return Polynomial(c, x, x * x); }

float Polynomial(const float* c, float x, float x2, float x4) {
  const float low = Polynomial(c, x, x2);
  const float high = Polynomial(c + 4, x, x2);
  return low + (high * x4);
}

float Polynomial(const float (&c)[8], float x) {
  const float x2 = x * x;
  return Polynomial(c, x, x2, x2 * x2);
}

float Polynomial(const float (&c)[9], float x) {
  const float x2 = x * x;
  const float x4 = x2 * x2;
  return Polynomial(c, x, x2, x4) + (c[8] * (x4 * x4));
}

float SignedToF32(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word)); }

// -log2(x * 2^-scale). With `below` = 1, of the next f32 below x.
//
// The bits of x less those of 2/3 are the exponent e, above, and the place of
// the mantissa in [2/3, 4/3), below. The logarithm of a number near 1 comes
// from the polynomial alone, e being 0: nothing cancels.
float MinusLog2(float x, int scale, uint32_t below) {
  const uint32_t shifted = std::bit_cast<uint32_t>(x) - (kTwoThirds + (scale << 23) + below);
  const float e = SignedToF32(static_cast<uint32_t>(static_cast<int32_t>(shifted) >> 23));
  const float m = std::bit_cast<float>((shifted & 0x7FFFFF) + kTwoThirds);
  const float f = m - 1.0f;
  const float series = f * Polynomial(kLog, f);
  return series - e;
}

float Uniform(const UniformSampler& s, uint32_t word) {
  const float u = static_cast<float>(word >> 8) * 0x1p-24f;
  const float scaled = u * s.span;
  const float value = s.low + scaled;
  return std::min(value, s.last);
}

// Box and Muller, "A note on the generation of random normal deviates" (1958):
// a random radius and a random angle give two independent normals.
std::array<float, 2> NormalPair(const NormalSampler& s, uint32_t radius_word, uint32_t angle_word) {
  // The word as a signed integer k. |k + 1/4| is (j + 1/2) / 2 with each j from 0 to
  // 2^32 - 1 once, so u = |k + 1/4| * 2^-31 is (j + 1/2) * 2^-32, exact where it
  // is small: the tail ends at sqrt(2 * 33 ln 2) = 6.76. "Below" keeps u under 1
  // and the radius above 0.
  const float k = SignedToF32(radius_word);
  const float u = std::fabs(k + 0.25f);
  const float radius = std::sqrt(MinusLog2(u, 31, 1)) * s.scale;

  // An angle in [-pi/4, pi/4); the word's two lowest bits then choose one of the four
  // quarters of the circle, by a reflection across each of two axes.
  const float x = SignedToF32(angle_word) * 0x1p-31f;
  const float y = x * x;
  const float sine = x * Polynomial(kSin, y);
  const float cosine = Polynomial(kCos, y);
  const float first = (angle_word & 2) ? -cosine : cosine;
  const bool swapped = angle_word & 1;

  const float product0 = radius * (swapped ? sine : first);
  const float product1 = radius * (swapped ? first : sine);
  return {product0 + s.mean, product1 + s.mean};
}

// z / (1 - 2q) for the quantile -z of q, from v = q(1 - q); see coefficients.h.
float QuantileRatio(float v) {
  if (v >= kCentralEnd) {
    // Even and odd powers of s apart: s^2 is v, and the square root has time.
    const float s = std::sqrt(v);
    const float n_even = kNumerator[0] + (v * (kNumerator[2] + (v * kNumerator[4])));
    const float n_odd = kNumerator[1] + (v * kNumerator[3]);
    const float d_even = kDenominator[0] + (v * (kDenominator[2] + v));
    const float d_odd = kDenominator[1] + (v * kDenominator[3]);
    const float n = n_even + (s * n_odd);
    const float d = d_even + (s * d_odd);
    return n / d;
  }
  const float t = std::sqrt(MinusLog2(v, 0, 0));
  const float inverse = 1.0f / t;
  const float r = inverse - kTailCentre;
  const float whole = kSqrt2Ln2 * t;
  return whole + Polynomial(kTail, r);
}

float TruncatedNormal(const TruncatedNormalSampler& s, uint32_t word) {
  const uint32_t half = word >> 31;
  const float place = SignedToF32(word & 0x7FFFFFFF);
  const float part = place * s.step[half];
  const float q = s.tail[half] + part;
  const float p = 1.0f - q;
  const float x = p - q;
  const float distance = x * QuantileRatio(q * p);
  const uint32_t sign = (word & s.sign_mask) ^ s.sign_flip;
  const float z = std::bit_cast<float>(std::bit_cast<uint32_t>(distance) ^ sign);

  const float clamped = std::min(std::max(z, s.z_low), s.z_high);
  const float scaled = clamped * s.std;
  return scaled + s.mean;
}

philox4x32::Words BlockOf(Stream stream, uint64_t block) {
  return philox4x32::Block(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream.draw, 0},
      {static_cast<uint32_t>(stream.key), static_cast<uint32_t>(stream.key >> 32)});
}

}  // namespace

uint32_t Word(Stream stream, uint64_t element) { return BlockOf(stream, element / 4)[element % 4]; }

float Sample(const Sampler& sampler, Stream stream, uint64_t element) {
  const philox4x32::Words words = BlockOf(stream, element / 4);
  const int i = static_cast<int>(element % 4);
  return std::visit(
      Overloaded{
          [&](const BitsSampler&) { return std::bit_cast<float>(words[i]); },
          [&](const UniformSampler& s) { return Uniform(s, words[i]); },
          [&](const NormalSampler& s) {
            // Words 0 and 1 are one pair, 2 and 3 the other.
            return NormalPair(s, words[i & 2], words[i | 1])[i & 1];
          },
          [&](const TruncatedNormalSampler& s) { return TruncatedNormal(s, words[i]); },
      },
      sampler);
}

extern const Engine kPhilox4x32 = {
    .name = "philox4x32",
    .source = "Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), 10 rounds",
    .key = KeyOf,
    .sequential = false,
    .sample =
        [](const Sampler& sampler, const Stream& stream, uint64_t first, size_t count, float* out) {
          for (size_t i = 0; i < count; ++i) out[i] = Sample(sampler, stream, first + i);
        },
};

}  // namespace shardinit
