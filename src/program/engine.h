// The random engines of rng/engines.h, as operations of a program.
#pragma once

#include <string_view>

#include "graph/graph.h"
#include "program/number.h"

namespace shardinit::program {

// The key and the place of one drawn element.
struct Source {
  Word32 key_low, key_high;
  Word64 element;  // row-major index in the tensor
};

// The members of the samplers (rng/sampler.h).
struct UniformParameters {
  Single low, span, last;
};
struct NormalParameters {
  Single mean, scale, std;
};
struct TruncatedNormalParameters {
  Single mean, std, tail[2], step[2];
  Word32 sign_mask, sign_flip;
  Single z_low, z_high, erf_low, erf_span, inside_low, inside_high;
};

struct ProgramEngine {
  std::string_view name;
  Word32 (*word)(const Source& source, uint32_t draw);
  Single (*uniform)(const UniformParameters& s, const Source& source, uint32_t draw);
  Single (*normal)(const NormalParameters& s, const Source& source, uint32_t draw);
  Single (*truncated_normal)(const TruncatedNormalParameters& s, const Source& source,
                             uint32_t draw);
};

// Throws Error (kUsage) if programs do not have the engine.
const ProgramEngine& ProgramEngineOf(const Engine& engine);

}  // namespace shardinit::program
