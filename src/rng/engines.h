// Lists the random generators that a spec may name, and how each generates values.
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
  std::string_view source;  // where the engine is defined
  // Returns the key of a tensor drawn under `path`.
  uint64_t (*key)(uint64_t seed, std::string_view path);
  // Values depend on how many numbers were drawn before them, including for other tensors.
  bool sequential;
  // Generates elements first … first + count - 1 of a stream. This is readable code. Faster kernels
  // produce the same bits; engines without a kernel use only this.
  void (*sample)(const Sampler& sampler, const Stream& stream, uint64_t first, size_t count,
                 float* out);
  // The framework that produces the same numbers, or empty.
  std::string_view framework = {};
  // The engine's keys are JAX's, so a spec may give their words.
  bool has_jax_keys = false;
  // All tensors are drawn from one stream: their keys are positions in it, not paths.
  bool has_places = false;
  // Returns a phrase that explains why the engine cannot generate these numbers, or an empty text
  // if it can. Null if the engine can generate all numbers.
  std::string_view (*refusal)(const Sampler& sampler) = nullptr;
  std::string_view short_name = {};  // a second name for specs, or empty

  std::string_view spec_name() const { return short_name.empty() ? name : short_name; }
};

extern const Engine kJaxThreefry;
// Generates the numbers of rng/torch_cpu.h, for whole tensors, so it has no `sample`.
extern const Engine kTorchCpu;

std::span<const Engine* const> Engines();  // the default first
const Engine* FindEngine(std::string_view name);
std::vector<std::string> EngineNames();  // includes the short names

}  // namespace shardinit
