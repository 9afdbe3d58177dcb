// Defines samplers, which convert random words to f32 values. Their parameters are computed once
// per tensor, in f64 or by MPFR, and rounded to f32. All later operations are f32 and integer
// operations, in the order that rng/samplers-inl.h shows and shardinit-values(7) lists.
#pragma once

#include <cstdint>
#include <variant>

namespace shardinit {

// A parameter that sets a scale (std, |mean|, |low|, |high|, high - low) is 0 or within these
// bounds. Then nothing overflows and no subnormal result matters, so processors that flush
// subnormals produce the same bits.
inline constexpr double kMinScale = 0x1p-80, kMaxScale = 0x1p100;
// The cut-off that is nearer to the mean is at most this many standard deviations away.
inline constexpr double kMaxNearCutoff = 10;
// A draw is between the cut-offs with at least this probability.
inline constexpr double kMinCutoffProbability = 0x1p-90;

// The 32 random bits themselves, as the bits of an f32, for draws that are compared or used as
// whole numbers. The dtype must be f32.
struct BitsSampler {};

// The members of the samplers are numbers of type F and words of type W: plain ones, or numbers and
// words of a program (program/engine.h).

template <typename F, typename W>
struct UniformSamplerOf {
  F low, span;  // The value is low + u * span, for u in [0, 1) with 24 bits,
  F last;       // but at most this, the largest normal f32 below `high`. JAX's values may be
                // `high`.
};

// The Box-Muller radius is sqrt(-2 ln u) * std = sqrt(-log2 u) * scale.
template <typename F, typename W>
struct NormalSamplerOf {
  F mean, scale;  // scale = std * sqrt(2 ln 2)
  F std;
};

// Samples by the inverse CDF. The word's top bit chooses a half of the probability between the
// cut-offs. The other 31 bits are the place in that half, counted from a cut-off. The probability
// of the tail is
//
//   q = tail[half] + place * step[half]
//
// with a small relative error even where it is small. The value in standard deviations is the
// quantile of q, with its sign bit XORed with `(word & sign_mask) ^ sign_flip`.
template <typename F, typename W>
struct TruncatedNormalSamplerOf {
  F mean, std;
  F tail[2], step[2];
  W sign_mask, sign_flip;
  F z_low, z_high;  // cut-offs in standard deviations
  // JAX's value is sqrt(2) erf_inv(u) for u uniform in [erf_low, erf_low + erf_span], clamped to
  // [inside_low, inside_high].
  F erf_low, erf_span;
  F inside_low, inside_high;
};

template <typename F, typename W>
using SamplerWith = std::variant<BitsSampler, UniformSamplerOf<F, W>, NormalSamplerOf<F, W>,
                                 TruncatedNormalSamplerOf<F, W>>;

using UniformSampler = UniformSamplerOf<float, uint32_t>;
using NormalSampler = NormalSamplerOf<float, uint32_t>;
using TruncatedNormalSampler = TruncatedNormalSamplerOf<float, uint32_t>;
using Sampler = SamplerWith<float, uint32_t>;

// Requires low < high after both are rounded to f32.
UniformSampler MakeUniform(double low, double high);
NormalSampler MakeNormal(double mean, double std);
// The cut-offs z_low < z_high are in standard deviations and may be far from 0 (-100, 100).
TruncatedNormalSampler MakeTruncatedNormal(double mean, double std, double z_low, double z_high);

// Returns whether a parameter is 0 or has a magnitude within [kMinScale, kMaxScale].
bool IsValidScale(double value);
// Returns whether MakeTruncatedNormal accepts these cut-offs.
bool AreValidCutoffs(double z_low, double z_high);

}  // namespace shardinit
