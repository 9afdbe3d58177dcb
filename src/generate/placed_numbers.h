// Makes numbers of torch_cpu and jax_threefry that an expression takes by their place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "expr/program.h"
#include "rng/sampler.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// The numbers of one call in an expression. It is safe to use from several threads.
class PlacedNumbers {
 public:
  PlacedNumbers(const Program::PlacedCall& call, const Stream& stream);
  ~PlacedNumbers();
  PlacedNumbers(PlacedNumbers&&) noexcept;

  // The numbers that one thread has at hand, since callers ask for neighbours one after another.
  struct Window {
    uint64_t first = 0;
    std::vector<double> values = {};
  };

  // Sets out[i] to number element[i], or to NaN if there is none.
  void Get(const double* element, size_t count, Window& window, double* out) const;

 private:
  struct Permutation;

  void Make(uint64_t first, size_t count, Window& window) const;

  Program::PlacedFunction function_;
  torch_cpu::Drawn drawn_;
  std::optional<Sampler> sampler_;            // samples JAX's numbers by the key of drawn_
  uint64_t range_ = 0;                        // the range of whole numbers
  std::unique_ptr<Permutation> permutation_;  // made at its first use
};

}  // namespace shardinit
