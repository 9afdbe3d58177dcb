#include "program/engine.h"

#include <fmt/format.h>

#include "base/error.h"
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
  return Select<Word32>((place & 2) != 0, Select<Word32>(odd, words[3], words[2]),
                        Select<Word32>(odd, words[1], words[0]));
}

Single NormalOf(const NormalParameters& s, const Source& source, uint32_t draw) {
  const std::array<Word32, 4> words = BlockOf(source, draw);
  const Word32 place = LowWord(source.element & 3);
  const Flag upper = (place & 2) != 0, second = (place & 1) != 0;
  return samplers::Normal<Single>(s, Select<Word32>(upper, words[2], words[0]),
                                  Select<Word32>(upper, words[3], words[1]), second);
}

Word32 JaxWordOf(const Source& source, uint32_t draw) {
  std::array<Word32, 2> key = {source.key_low, source.key_high};
  if (draw > 0) key = threefry2x32::Block<Word32>({0, draw}, key);  // jax.random.fold_in
  const std::array<Word32, 2> words =
      threefry2x32::Block<Word32>({LowWord(source.element >> 32), LowWord(source.element)}, key);
  return words[0] ^ words[1];
}

constexpr ProgramEngine kEngines[] = {
    {"philox4x32", WordOf,
     [](const UniformParameters& s, const Source& source, uint32_t draw) {
       return samplers::Uniform<Single>(s, WordOf(source, draw));
     },
     NormalOf,
     [](const TruncatedNormalParameters& s, const Source& source, uint32_t draw) {
       return samplers::TruncatedNormal<Single>(s, WordOf(source, draw));
     }},
    {"jax_threefry", JaxWordOf,
     [](const UniformParameters& s, const Source& source, uint32_t draw) {
       return samplers::JaxUniform<Single>(s.low, s.span, JaxWordOf(source, draw));
     },
     [](const NormalParameters& s, const Source& source, uint32_t draw) {
       return samplers::JaxNormal<Single>(s, JaxWordOf(source, draw));
     },
     [](const TruncatedNormalParameters& s, const Source& source, uint32_t draw) {
       return samplers::JaxTruncatedNormal<Single>(s, JaxWordOf(source, draw));
     }},
};

}  // namespace

const ProgramEngine& ProgramEngineOf(const Engine& engine) {
  for (const ProgramEngine& row : kEngines) {
    if (row.name == engine.name) return row;
  }
  throw Error(ExitCode::kUsage, fmt::format("programs do not have the engine `{}`", engine.name));
}

}  // namespace shardinit::program
