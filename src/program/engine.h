// Writes the random engines of rng/engines.h as operations of a program.
#pragma once

#include <string_view>

#include "graph/graph.h"
#include "program/number.h"
#include "rng/sampler.h"

namespace shardinit::program {

// The key and the place of one drawn element.
struct Source {
  Word32 key_low, key_high;
  Word64 element;  // row-major index in the tensor
};

using ProgramSampler = SamplerWith<Single, Word32>;

struct ProgramEngine {
  std::string_view name;
  Word32 (*word)(const Source& source, uint32_t draw);
  Single (*sample)(const ProgramSampler& sampler, const Source& source, uint32_t draw);
  // Return the sampler and the stream of a placed number. Null if the engine has no such numbers.
  Sampler (*sampler_of)(const Program::PlacedCall& call) = nullptr;
  Stream (*stream_of)(const Program::PlacedCall& call) = nullptr;
};

// Throws Error (kUsage) if programs do not support the engine.
const ProgramEngine& ProgramEngineOf(const Engine& engine);

}  // namespace shardinit::program
