// The job that one call of Fill or FillRows gives to a backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit::kernels {

struct Job {
  const Sampler& sampler;
  Stream stream;
  uint64_t first, stride;
  size_t rows, count;
  DType dtype;
  uint8_t* out;
};

// Runs a job with the engine's own readable reference, an element at a time.
void RunReference(const Job& job);

}  // namespace shardinit::kernels
