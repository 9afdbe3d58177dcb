// The random generators that a spec may name, and how each makes values.
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
  std::string_view source;  // where it is defined
  // The key of a tensor that is drawn under this path.
  uint64_t (*key)(uint64_t seed, std::string_view path);
  // Values depend on how many numbers are drawn before them, also for other tensors.
  bool sequential;
  // Makes elements first … first + count - 1 of a stream. This is readable code: faster kernels
  // give the same bits, and engines without a kernel use only this.
  void (*sample)(const Sampler& sampler, const Stream& stream, uint64_t first, size_t count,
                 float* out);
  // The framework whose numbers these are, or empty.
  std::string_view framework = {};
  // The engine's keys are JAX's, and a spec may give their words.
  bool has_jax_keys = false;
  // All tensors are drawn from one stream: their keys are places in it, and not paths.
  bool has_places = false;
  // Returns why the engine cannot make these numbers, as a phrase, or an empty text if it can.
  // Null if it can make all numbers.
  std::string_view (*refusal)(const Sampler& sampler) = nullptr;
  std::string_view short_name = {};  // a second name for specs, or empty

  std::string_view spec_name() const { return short_name.empty() ? name : short_name; }
};

extern const Engine kJaxThreefry;
// This engine's numbers are those of rng/torch_cpu.h, for whole tensors: it has no `sample`.
extern const Engine kTorchCpu;

std::span<const Engine* const> Engines();  // the default first
const Engine* FindEngine(std::string_view name);
std::vector<std::string> EngineNames();  // with the short names

}  // namespace shardinit
