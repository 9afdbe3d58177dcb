#include "rng/jax_threefry.h"

#include <string_view>

#include "rng/engines.h"
#include "rng/jax-samplers-inl.h"
#include "rng/threefry2x32.h"

namespace shardinit {
namespace jax_threefry {
namespace {

uint64_t Block(uint64_t key, uint64_t counter) {
  const threefry2x32::Words words = threefry2x32::Block<uint32_t>(
      {static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(counter)},
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return uint64_t{words[1]} << 32 | words[0];
}

std::string_view Refusal(const Sampler& sampler) {
  const auto* truncated = std::get_if<TruncatedNormalSampler>(&sampler);
  if (truncated == nullptr) return {};
  if (!(truncated->erf_span > 0)) return "to JAX, erf of both cut-offs is the same f32";
  // Uniform numbers u can be as small as 2^-63.
  if (truncated->std > 0 && truncated->std < 0x1p-60f) return "`std` is below 2^-60";
  return {};
}

}  // namespace

uint64_t KeyOfSeed(uint64_t seed) { return seed << 32 | seed >> 32; }
uint64_t SplitKey(uint64_t key, uint64_t index) { return Block(key, index); }
uint64_t FoldIn(uint64_t key, uint32_t data) { return Block(key, data); }

uint64_t KeyOfDraw(const Stream& stream) {
  return stream.draw == 0 ? stream.key : FoldIn(stream.key, stream.draw);
}

uint32_t Word(const Stream& stream, uint64_t element) {
  const uint64_t words = Block(KeyOfDraw(stream), element);
  return static_cast<uint32_t>(words) ^ static_cast<uint32_t>(words >> 32);
}

float Sample(const Sampler& sampler, const Stream& stream, uint64_t element) {
  const uint32_t word = Word(stream, element);
  return std::visit([&](const auto& s) { return samplers::Jax<float>(s, word); }, sampler);
}

}  // namespace jax_threefry

extern const Engine kJaxThreefry = {
    .name = "jax_threefry",
    .source =
        "Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011): Threefry2x32, "
        "20 rounds, as JAX counts (jax_threefry_partitionable)",
    .key = KeyOf,
    .sequential = false,
    .sample =
        [](const Sampler& sampler, const Stream& stream, uint64_t first, size_t count, float* out) {
          for (size_t i = 0; i < count; ++i) {
            out[i] = jax_threefry::Sample(sampler, stream, first + i);
          }
        },
    .framework = "JAX",
    .has_jax_keys = true,
    .refusal = jax_threefry::Refusal,
};

}  // namespace shardinit
