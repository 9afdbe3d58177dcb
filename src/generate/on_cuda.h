// Generates values of a box in the memory of a CUDA device, with the same bits as on a CPU.
#pragma once

#include "graph/graph.h"
#include "kernels/cuda.h"

namespace shardinit {

// Writes a whole box of at least one element. Returns false, with nothing written, if no kernel
// generates this tensor's values. Devices support only constants and distributions with one draw
// for each element. Throws as kernels::FillOnCuda() does.
bool FillBoxOnCuda(const Tensor& tensor, const Box& box, const kernels::CudaMemory& to);

}  // namespace shardinit
