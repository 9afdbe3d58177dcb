// The draws of torch_cpu for a tensor or for a call in an expression.
#pragma once

#include <cstdint>

#include "graph/engines/engines.h"
#include "init/distribution.h"
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
  kTorchOrthogonal,
  kTorchNormalSums,
  kTorchUniformSums,
  kTorchNormalSorted,
  kTorchUniformSorted,
};

// The elements of a draw that a sum adds up, or that are sorted: `length` elements `stride` apart.
struct TorchRows {
  uint64_t length = 1, stride = 1;
  int power = 1;  // of each term of a sum
};

// Takes a tensor that has a place and is not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);
// Takes a call of fractions in an expression, and the tensor's stream.
torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream);
// Takes a call of kTorchNormalSums or a kind after it.
TorchRows TorchRowsOf(const Program::PlacedCall& call);
// Takes a call of kTorchOrthogonal.
OrthogonalSize TorchMatrixOf(const Program::PlacedCall& call);

}  // namespace shardinit
