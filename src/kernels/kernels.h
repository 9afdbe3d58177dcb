// Generates elements of random tensors with fast kernels, with the same bits on every instruction
// set. The formulas are the readable reference's (rng/reference.h), compiled with vectors. Tests
// compare the two bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rng/orthogonal.h"
#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit::kernels {

// Writes elements first … first + count - 1 of the stream, encoded as `dtype`, to `out` (aligned to
// its element size at least). `first` and `count` may have any value.
void Fill(const Sampler& sampler, Stream stream, uint64_t first, size_t count, DType dtype,
          void* out);

// Writes `rows` runs of `count` elements each, packed one after another. Run r starts at first + r
// * stride. This is a tile of a box that is sharded along its last dimensions.
void FillRows(const Sampler& sampler, Stream stream, uint64_t first, uint64_t stride, size_t rows,
              size_t count, DType dtype, void* out);

// Returns the instruction sets that this build contains and this CPU supports, best first.
std::vector<std::string> Targets();
std::string ActiveTarget();
// Uses only `name` from now on (`SHARDINIT_TARGET` does this at start-up). An empty name chooses
// the best again. Returns false if this CPU or build does not support it.
bool ForceTarget(std::string_view name);

// The best number of columns to generate together: a multiple of every vector's length.
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
