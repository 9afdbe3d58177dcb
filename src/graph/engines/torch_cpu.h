// The draws of torch_cpu for a tensor or for a call in an expression.
#pragma once

#include "graph/engines/engines.h"
#include "rng/torch_cpu.h"

namespace shardinit {

extern const GraphEngine kGraphTorchCpu;

// The kinds of numbers that functions of expressions draw; `PlacedFunction::kind` has one.
enum TorchKind : int {
  kTorchUniform,
  kTorchNormal,
  kTorchPairs,  // Normal numbers of memory that is not contiguous come in pairs, however many.
  kTorchTruncatedNormal,
  kTorchInteger,
  kTorchWord,
  kTorchPermutation,
};

// Takes a tensor that has a place and is not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);
// Takes a call of fractions in an expression, and the tensor's stream.
torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream);

}  // namespace shardinit
