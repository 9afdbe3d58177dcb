// Generates the numbers of rng/torch_cpu.h fast, with the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rng/torch_cpu.h"

namespace shardinit::kernels {

// Writes elements first … first + count - 1, encoded as the dtype, to `out`. Returns how often all
// numbers of the tensor must be drawn for these elements: once, except for a TruncatedNormal.
int FillTorch(const torch_cpu::Drawn& drawn, uint64_t first, size_t count, void* out);

// Returns where the next drawn numbers begin. Unless torch_cpu::IsOneRound(), this generates all
// elements, on up to `jobs` threads.
Stream AfterTorch(const torch_cpu::Drawn& drawn, int jobs);

struct TorchJob {
  const torch_cpu::Drawn& drawn;
  uint64_t first;
  size_t count;
  uint8_t* out;
};

// Runs a job with the readable reference, one element at a time.
int RunTorchReference(const TorchJob& job);

}  // namespace shardinit::kernels
