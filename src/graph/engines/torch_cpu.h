// Finds the numbers that PyTorch's CPU generator draws for a tensor or a call in an expression.
#pragma once

#include <cstdint>

#include "graph/engines/engines.h"
#include "init/distribution.h"
#include "rng/torch_cpu.h"

namespace shardinit {

extern const GraphEngine kGraphTorchCpu;

// The kinds of numbers that expression functions draw; the values of `PlacedFunction::kind`.
enum TorchKind : int {
  kTorchUniform,
  kTorchNormal,
  kTorchPairs,  // Normal numbers for non-contiguous memory always come in pairs.
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

// The elements of a draw that are summed or sorted: `length` elements that are `stride` apart.
struct TorchRows {
  uint64_t length = 1, stride = 1;
  int power = 1;  // of each term of a sum
};

// Requires a tensor that has a place and is not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);
// Requires a call of fractions in an expression; `stream` is the tensor's stream.
torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream);
// Requires a call of kTorchNormalSums or a later kind.
TorchRows TorchRowsOf(const Program::PlacedCall& call);
// Requires a call of kTorchOrthogonal.
OrthogonalSize TorchMatrixOf(const Program::PlacedCall& call);

}  // namespace shardinit
