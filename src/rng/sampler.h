// Random words → f32 values. Parameters are computed once per tensor, in f64 or by MPFR, and
// rounded to f32. Everything after that is f32 and integer operations, in the order that
// rng/samplers-inl.h shows and shardinit-values(7) lists.
#pragma once

#include <cstdint>
#include <variant>

namespace shardinit {

// A parameter that sets a scale (std, |mean|, |low|, |high|, high - low) is 0 or within these
// bounds. Then nothing overflows, and no subnormal result matters, so a processor that flushes
// subnormals gives the same bits.
inline constexpr double kMinScale = 0x1p-80, kMaxScale = 0x1p100;
// The cut-off nearer to the mean is at most this many standard deviations away…
inline constexpr double kMaxNearCutoff = 10;
// …and a draw falls between the cut-offs with at least this probability.
inline constexpr double kMinCutoffProbability = 0x1p-90;

// The 32 random bits themselves, as the bits of an f32, for draws that are compared or taken as
// whole numbers. The dtype must be f32.
struct BitsSampler {};

// The members of the samplers are numbers of type F and words of type W: plain ones, or those of a
// program (program/engine.h).

template <typename F, typename W>
struct UniformSamplerOf {
  F low, span;  // low + u * span, for u in [0, 1) with 24 bits…
  F last;       // …and never above this, the largest normal f32 below `high`. JAX's values may be
                // `high`.
};

// The radius of Box and Muller is sqrt(-2 ln u) * std = sqrt(-log2 u) * scale.
template <typename F, typename W>
struct NormalSamplerOf {
  F mean, scale;  // scale = std * sqrt(2 ln 2)
  F std;
};

// Samples by the inverse CDF. The word's top bit chooses a half of the probability between the
// cut-offs; the other 31 bits are the place in it, counted from a cut-off.
// q = tail[half] + place * step[half] is the probability of a tail, relatively exact where it is
// small. The quantile of q, its sign bit XORed with (word & sign_mask) ^ sign_flip, is the value in
// standard deviations.
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

// Needs low < high once both are rounded to f32.
UniformSampler MakeUniform(double low, double high);
NormalSampler MakeNormal(double mean, double std);
// The cut-offs z_low < z_high are in standard deviations and may be far out (-100, 100).
TruncatedNormalSampler MakeTruncatedNormal(double mean, double std, double z_low, double z_high);

// Whether a parameter is 0 or has a magnitude within [kMinScale, kMaxScale].
bool IsValidScale(double value);
// Whether MakeTruncatedNormal accepts these cut-offs.
bool AreValidCutoffs(double z_low, double z_high);

}  // namespace shardinit
