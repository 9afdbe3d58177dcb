#include "rng/reference.h"

#include <bit>
#include <cfloat>

#include "base/overloaded.h"
#include "rng/engines.h"
#include "rng/philox4x32.h"
#include "rng/samplers-inl.h"

static_assert(FLT_EVAL_METHOD == 0, "f32 operations must be rounded to f32");

namespace shardinit {
namespace {

philox4x32::Words BlockOf(Stream stream, uint64_t block) {
  return philox4x32::Block<uint32_t>(
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
          [&](const UniformSampler& s) { return samplers::Uniform<float>(s, words[i]); },
          [&](const NormalSampler& s) {
            // Words 0 and 1 are one pair, 2 and 3 are the other.
            return samplers::Normal<float>(s, words[i & 2], words[i | 1], (i & 1) != 0);
          },
          [&](const TruncatedNormalSampler& s) {
            return samplers::TruncatedNormal<float>(s, words[i]);
          },
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
