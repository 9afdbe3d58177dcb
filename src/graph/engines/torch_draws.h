// The draws of torch_cpu for a tensor.
#pragma once

#include <string>

#include "graph/graph.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// Returns why PyTorch's numbers cannot be made for this tensor; empty if they can.
std::string TorchRefusal(const Tensor& tensor);

// Returns whether the tensor has one place in the stream; expressions have a place for each call.
bool HasPlace(const Tensor& tensor);

// Takes a tensor that has a place and is not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);
// Takes a call in an expression, and the tensor's stream.
torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream);

// Returns whether PyTorch rounds these numbers in its own way, so that some bits may differ.
bool IsInexact(const Tensor& tensor);

}  // namespace shardinit
