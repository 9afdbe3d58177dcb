// Fills memory of CUDA devices, with the bits that the kernels for processors make. What a kernel
// writes is there when the work of its stream has reached so far, as with all kernels of CUDA.
#pragma once

#include <cstdint>
#include <span>

#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::kernels {

struct CudaMemory {
  uint64_t address;  // of memory of a device, aligned to the size of an element
  void* stream;      // a CUstream; null is the default stream
};

// Writes the elements of the runs, one run after another, encoded as `dtype`. Returns false, with
// nothing written, if no device makes numbers of the stream's engine, or not this device, or not
// with this driver, or if this build has no kernels for CUDA. Throws Error: kUsage if the address
// is not one of a device, kWorld if the driver refuses.
bool FillOnCuda(const Sampler& sampler, const Stream& stream, const Runs& runs, DType dtype,
                const CudaMemory& to);

// Writes an element's bytes `count` times. Throws as FillOnCuda() does.
void RepeatOnCuda(std::span<const uint8_t> element, uint64_t count, const CudaMemory& to);

}  // namespace shardinit::kernels
