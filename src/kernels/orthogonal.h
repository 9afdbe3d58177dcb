// Fast columns of random orthogonal matrices, with the bits of rng/orthogonal.h on every
// instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "rng/orthogonal.h"

namespace shardinit::kernels {

// The number of columns that are best made together: a multiple of every vector's length.
inline constexpr int64_t kPanelColumns = 32;

// Columns first … first + count - 1, count <= kPanelColumns, of the matrix of these reflections,
// times `gain`. Row i of column first + c goes to out[i * row_stride + c * column_stride].
struct PanelJob {
  std::span<const ReflectionBlock> blocks;
  int64_t rows, first, count;
  double gain;
  float* out;
  int64_t row_stride, column_stride;
};
void MakePanel(const PanelJob& job);

}  // namespace shardinit::kernels
