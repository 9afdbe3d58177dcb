// The numbers of rng/torch_cpu.h, made fast: the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rng/torch_cpu.h"

namespace shardinit::kernels {

// Writes elements first … first + count - 1, encoded as the dtype, to `out`. Returns how often all
// numbers of the tensor have to be drawn for these: once, but of a TruncatedNormal.
int FillTorch(const torch_cpu::Drawn& drawn, uint64_t first, size_t count, void* out);

// Where the numbers drawn next begin. Unless torch_cpu::IsOneRound(), this makes all elements, on
// up to `jobs` threads.
Stream AfterTorch(const torch_cpu::Drawn& drawn, int jobs);

struct TorchJob {
  const torch_cpu::Drawn& drawn;
  uint64_t first;
  size_t count;
  uint8_t* out;
};

// An element at a time.
int RunTorchReference(const TorchJob& job);

}  // namespace shardinit::kernels
