// Numbers of torch_cpu that an expression takes by their place in the stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "expr/program.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// Those of one call in an expression. Safe to use from several threads.
class TorchNumbers {
 public:
  TorchNumbers(const Program::TorchCall& call, const Stream& stream);
  ~TorchNumbers();
  TorchNumbers(TorchNumbers&&) noexcept;

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

  Program::TorchFunction function_;
  torch_cpu::Drawn drawn_;
  uint64_t range_ = 0;                        // Of whole numbers.
  std::unique_ptr<Permutation> permutation_;  // Made when it is first asked for.
};

}  // namespace shardinit
