// The random generators that a spec may name, and how values come from each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rng/sampler.h"
#include "rng/stream.h"

namespace shardinit {

struct Engine {
  std::string_view name;
  std::string_view source;  // Where it is defined.
  // Of a tensor that is drawn under this path.
  uint64_t (*key)(uint64_t seed, std::string_view path);
  // Values depend on how many numbers are drawn before them, for other tensors too.
  bool sequential;
  // Elements first … first + count - 1 of a stream. Readable: kernels that are faster give the same
  // bits, and an engine that has none is made by this alone.
  void (*sample)(const Sampler& sampler, const Stream& stream, uint64_t first, size_t count,
                 float* out);
  // Its keys are JAX's, and may be given.
  bool has_jax_keys = false;
  // Why it cannot make these numbers: a phrase; empty: it can. Null: it can make all.
  std::string_view (*refusal)(const Sampler& sampler) = nullptr;
  std::string_view short_name = {};  // What a spec may say, too; empty: it has none.
};

extern const Engine kJaxThreefry;
// Its numbers are those of rng/torch_cpu.h, of whole tensors: it has no `sample`.
extern const Engine kTorchCpu;

std::span<const Engine* const> Engines();  // The default first.
const Engine* FindEngine(std::string_view name);
std::vector<std::string> EngineNames();  // With the short ones.

}  // namespace shardinit
