// Defines the arguments that the host passes to the kernels in kernels/cuda.cu.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit::kernels {

// Runs of elements, which are written one after another. Run r begins at element first + r / inner
// * outer_stride + r % inner * inner_stride of the tensor.
struct CudaFill {
  uint64_t first = 0, outer_stride = 0, inner_stride = 0;
  uint64_t length = 0;           // the elements of a run
  uint64_t inner = 1, runs = 1;  // numbers of runs
  uint64_t lanes = 1;            // threads that generate one run together; divides all threads
  uint64_t key = 0;
  uint32_t draw = 0;
  DType dtype = DType::f32;
  uint8_t* out = nullptr;
};

// Blocks of four elements that a thread generates in one turn. Neighbouring threads have
// neighbouring blocks, so that one store of all threads fills whole lines of memory.
inline constexpr int kCudaBlocks = 2;

}  // namespace shardinit::kernels
