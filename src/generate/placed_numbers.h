// Numbers of torch_cpu and jax_threefry that an expression takes by their place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "expr/program.h"
#include "rng/sampler.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// Those of one call in an expression. Safe to use from several threads.
class PlacedNumbers {
 public:
  PlacedNumbers(const Program::PlacedCall& call, const Stream& stream);
  ~PlacedNumbers();
  PlacedNumbers(PlacedNumbers&&) noexcept;

  // Numbers that one thread has at hand, as neighbours are asked for one after another.
  struct Window {
    uint64_t first = 0;
    std::vector<double> values = {};
  };

  // out[i] = number element[i], or NaN if there is none.
  void Get(const double* element, size_t count, Window& window, double* out) const;

 private:
  struct Permutation;

  void Make(uint64_t first, size_t count, Window& window) const;

  Program::PlacedFunction function_;
  torch_cpu::Drawn drawn_;
  std::optional<Sampler> sampler_;            // Of JAX's numbers, by the key of drawn_.
  uint64_t range_ = 0;                        // Of whole numbers.
  std::unique_ptr<Permutation> permutation_;  // Made when it is first asked for.
};

}  // namespace shardinit
