// What torch_cpu draws for a tensor.
#pragma once

#include <string>

#include "graph/graph.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// Why PyTorch's numbers cannot be made for this tensor; empty: they can.
std::string TorchRefusal(const Tensor& tensor);

// Whether its numbers have one place in the stream: those of expressions have their own.
bool HasPlace(const Tensor& tensor);

// Of a tensor that has a place, and is not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);
// Of a call in an expression, and the tensor's stream.
torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream);

// Whether PyTorch rounds these numbers in a way of its own, so that not every bit may be the same.
bool IsInexact(const Tensor& tensor);

}  // namespace shardinit
