#include "program/engine.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/overloaded.h"
#include "base/table.h"
#include "graph/engines/jax_threefry.h"
#include "rng/engines.h"
#include "rng/jax-samplers-inl.h"
#include "rng/philox4x32.h"
#include "rng/samplers-inl.h"
#include "rng/threefry2x32.h"

namespace shardinit::program {
namespace {

std::array<Word32, 4> BlockOf(const Source& source, uint32_t draw) {
  const Word64 block = source.element >> 2;
  return philox4x32::Block<Word32>({LowWord(block), LowWord(block >> 32), draw, 0},
                                   {source.key_low, source.key_high});
}

Word32 WordOf(const Source& source, uint32_t draw) {
  const std::array<Word32, 4> words = BlockOf(source, draw);
  const Word32 place = LowWord(source.element & 3);
  const Flag odd = (place & 1) != 0;
  // Compilers evaluate the arguments of a call in different orders, and here each writes a line.
  const Word32 low = Select<Word32>(odd, words[1], words[0]);
  const Word32 high = Select<Word32>(odd, words[3], words[2]);
  return Select<Word32>((place & 2) != 0, high, low);
}

Single SampleOf(const ProgramSampler& sampler, const Source& source, uint32_t draw) {
  return std::visit(Overloaded{
                        [&](const BitsSampler&) { return FromBits(WordOf(source, draw)); },
                        [&](const UniformSamplerOf<Single, Word32>& s) {
                          return samplers::Uniform<Single>(s, WordOf(source, draw));
                        },
                        [&](const NormalSamplerOf<Single, Word32>& s) {
                          const std::array<Word32, 4> words = BlockOf(source, draw);
                          const Word32 place = LowWord(source.element & 3);
                          const Flag upper = (place & 2) != 0, second = (place & 1) != 0;
                          const Word32 angle = Select<Word32>(upper, words[3], words[1]);
                          const Word32 radius = Select<Word32>(upper, words[2], words[0]);
                          return samplers::Normal<Single>(s, radius, angle, second);
                        },
                        [&](const TruncatedNormalSamplerOf<Single, Word32>& s) {
                          return samplers::TruncatedNormal<Single>(s, WordOf(source, draw));
                        },
                    },
                    sampler);
}

Word32 JaxWordOf(const Source& source, uint32_t draw) {
  std::array<Word32, 2> key = {source.key_low, source.key_high};
  if (draw > 0) key = threefry2x32::Block<Word32>({0, draw}, key);  // jax.random.fold_in
  const std::array<Word32, 2> words =
      threefry2x32::Block<Word32>({LowWord(source.element >> 32), LowWord(source.element)}, key);
  return words[0] ^ words[1];
}

Single JaxSampleOf(const ProgramSampler& sampler, const Source& source, uint32_t draw) {
  const Word32 word = JaxWordOf(source, draw);
  return std::visit([&](const auto& s) { return samplers::Jax<Single>(s, word); }, sampler);
}

constexpr ProgramEngine kEngines[] = {
    {"philox4x32", WordOf, SampleOf},
    {"jax_threefry", JaxWordOf, JaxSampleOf, JaxSamplerOf, JaxStreamOf},
};

}  // namespace

const ProgramEngine& ProgramEngineOf(const Engine& engine) {
  if (const ProgramEngine* const row = FindNamed(kEngines, engine.name)) return *row;
  throw Usage(fmt::format("programs do not have the engine `{}`", engine.name));
}

}  // namespace shardinit::program
