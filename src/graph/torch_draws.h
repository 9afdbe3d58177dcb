// What torch_cpu draws for a tensor.
#pragma once

#include <string>

#include "graph/graph.h"
#include "rng/torch_cpu.h"

namespace shardinit {

// Why PyTorch's numbers cannot be made for this tensor; empty: they can.
std::string TorchRefusal(const Tensor& tensor);

// Of a tensor that is drawn, and not refused.
torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor);

}  // namespace shardinit
