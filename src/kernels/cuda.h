// Fills memory of CUDA devices with the same bits as the kernels for CPUs. As with all CUDA
// kernels, the result is available when the stream's work has reached this point.
#pragma once

#include <cstdint>
#include <span>

#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::kernels {

struct CudaMemory {
  uint64_t address;  // of device memory, aligned to the size of an element
  void* stream;      // a CUstream; null is the default stream
};

// Writes the elements of the runs, one run after another, encoded as `dtype`. Returns false, with
// nothing written, if the build has no CUDA kernels for the stream's engine, or if the device or
// its driver does not support them. Throws Error: kUsage if the address is not on a device, kWorld
// if the driver reports an error.
bool FillOnCuda(const Sampler& sampler, const Stream& stream, const Runs& runs, DType dtype,
                const CudaMemory& to);

// Writes an element's bytes `count` times. Throws as FillOnCuda() does.
void RepeatOnCuda(std::span<const uint8_t> element, uint64_t count, const CudaMemory& to);

}  // namespace shardinit::kernels
