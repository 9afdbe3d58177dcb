// Finds the sampler for a distribution whose elements are each drawn from their own random words.
#pragma once

#include "init/distribution.h"
#include "rng/sampler.h"

namespace shardinit {

inline UniformSampler SamplerOf(const Uniform& u) { return MakeUniform(u.low, u.high); }
inline NormalSampler SamplerOf(const Normal& n) { return MakeNormal(n.mean, n.std); }
inline TruncatedNormalSampler SamplerOf(const TruncatedNormal& t) {
  return MakeTruncatedNormal(t.mean, t.std, t.low, t.high);
}

template <typename D>
concept Sampled = requires(const D& distribution) {
  SamplerOf(distribution);
};

}  // namespace shardinit
