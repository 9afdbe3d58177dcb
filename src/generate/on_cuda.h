// Makes values of a box in the memory of a CUDA device, with the same bits as elsewhere.
#pragma once

#include "graph/graph.h"
#include "kernels/cuda.h"

namespace shardinit {

// Writes a whole box of at least one element. Returns false, with nothing written, if no kernel
// makes values of this tensor: only constants and what is one draw for each element are made on a
// device. Throws as kernels::FillOnCuda() does.
bool FillBoxOnCuda(const Tensor& tensor, const Box& box, const kernels::CudaMemory& to);

}  // namespace shardinit
