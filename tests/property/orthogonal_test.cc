// Tests random orthogonal matrices: the kernels give the reference's bits, and the reference is
// orthogonal.

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "generate/fill.h"
#include "kernels/kernels.h"
#include "rng/engines.h"
#include "rng/reflections-inl.h"
#include "rng/sampler.h"
#include "support/forced_target.h"
#include "support/random_plan.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

const Stream kMatrixStream = {.key = 0x0123456789abcdef};

// Generates the whole matrix, rows >= columns, row-major. This is the readable reference.
std::vector<float> OrthogonalMatrix(const Stream& stream, int64_t rows, int64_t columns,
                                    double gain) {
  const Sampler normal = MakeNormal(0, 1);
  const int64_t count = ReflectionBlocks(columns);
  std::vector<float> vectors(static_cast<size_t>(VectorsBefore(rows, count)));
  std::vector<ReflectionBlock> blocks;
  for (int64_t b = 0; b < count; ++b) {
    float* const at = &vectors[VectorsBefore(rows, b)];
    const int64_t first = b * kReflections;
    for (int64_t j = first; j < std::min(first + kReflections, columns); ++j) {
      for (int64_t row = j; row < rows; ++row) {
        stream.engine->sample(normal, stream, ReflectionElement(rows, row, j), 1,
                              &at[(row - first) * kReflections + j - first]);
      }
    }
    blocks.push_back(MakeReflections(rows, columns, b, at));
  }

  std::vector<float> matrix(static_cast<size_t>(rows * columns));
  for (int64_t column = 0; column < columns; ++column) {
    std::vector<double> q(static_cast<size_t>(rows));
    q[column] = blocks[column / kReflections].sign[column % kReflections];
    for (int64_t b = column / kReflections; b >= 0; --b) {
      reflections::Reflect<double>(blocks[b], blocks[b].vectors, rows - blocks[b].first, 1,
                                   &q[blocks[b].first]);
    }
    for (int64_t i = 0; i < rows; ++i) matrix[i * columns + column] = RoundProduct(q[i], gain);
  }
  return matrix;
}

// Computes the matrix with the kernels, as the reference does, in panels of `width` columns.
std::vector<float> ByKernels(int64_t rows, int64_t columns, double gain, int64_t width,
                             bool transposed) {
  const int64_t count = ReflectionBlocks(columns);
  std::vector<float> vectors(static_cast<size_t>(VectorsBefore(rows, count)));
  std::vector<ReflectionBlock> blocks;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t first = b * kReflections;
    float* const at = &vectors[VectorsBefore(rows, b)];
    for (int64_t j = first; j < std::min(first + kReflections, columns); ++j) {
      std::vector<float> x(static_cast<size_t>(rows - j));
      kernels::Fill(MakeNormal(0, 1), kMatrixStream, ReflectionElement(rows, j, j), x.size(),
                    DType::f32, x.data());
      for (int64_t row = j; row < rows; ++row)
        at[(row - first) * kReflections + j - first] = x[row - j];
    }
    blocks.push_back(MakeReflections(rows, columns, b, at));
  }
  std::vector<float> matrix(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; c += width) {
    kernels::MakePanel({blocks, rows, c, std::min(width, columns - c), gain,
                        matrix.data() + c * (transposed ? rows : 1), transposed ? 1 : columns,
                        transposed ? rows : 1});
  }
  return matrix;
}

TEST(Orthogonal, OrthogonalKernelsEqualReference) {
  const int64_t shapes[][2] = {{1, 1}, {2, 1},   {2, 2},   {7, 7},     {8, 8},  {9, 8},
                               {9, 9}, {40, 17}, {64, 33}, {101, 100}, {300, 3}};
  for (const auto& [rows, columns] : shapes) {
    const double gain = rows % 2 ? 1 : -0.3;
    const std::vector<float> expected = OrthogonalMatrix(kMatrixStream, rows, columns, gain);
    for (const std::string& target : kernels::Targets()) {
      const ForcedTarget forced(target);
      for (const int64_t width : {kernels::kPanelColumns, int64_t{5}}) {
        EXPECT_EQ(ByKernels(rows, columns, gain, width, false), expected)
            << rows << " x " << columns << " " << target;
        const std::vector<float> transposed = ByKernels(rows, columns, gain, width, true);
        for (int64_t i = 0; i < rows * columns; ++i) {
          ASSERT_EQ(transposed[i % columns * rows + i / columns], expected[i]) << target;
        }
      }
    }
  }
}

// For any two columns, |q . r - (q is r)| is at most a few roundings to f32.
TEST(Orthogonal, ColumnsAreOrthonormal) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {37, 37}, {200, 130}, {513, 9}}) {
    const std::vector<float> q = OrthogonalMatrix(kMatrixStream, rows, columns, 1);
    for (int64_t a = 0; a < columns; ++a) {
      for (int64_t b = a; b < columns; ++b) {
        double product = 0;
        for (int64_t i = 0; i < rows; ++i) {
          product +=
              static_cast<double>(q[i * columns + a]) * static_cast<double>(q[i * columns + b]);
        }
        ASSERT_NEAR(product, a == b, 3e-7) << rows << " x " << columns;
      }
    }
  }
}

// Returns the matrix's element at each index of the tensor, by the definition.
std::vector<float> Definition(const Tensor& tensor) {
  const auto& o = std::get<Orthogonal>(tensor.distribution());
  const OrthogonalSize size = SizeOf(o, tensor.shape());
  const bool transposed = size.rows < size.columns;
  const std::vector<float> q = OrthogonalMatrix(tensor.stream(), std::max(size.rows, size.columns),
                                                std::min(size.rows, size.columns), o.gain);
  std::vector<float> values;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    Shape at(tensor.shape().size());
    int64_t rest = i, row = 0, column = 0;
    for (size_t d = at.size(); d-- > 0; rest /= tensor.shape()[d]) at[d] = rest % tensor.shape()[d];
    bool zero = false;
    for (size_t d = 0; d < at.size(); ++d) {
      if (o.rows >> d & 1) {
        row = row * tensor.shape()[d] + at[d];
      } else if (o.columns >> d & 1) {
        column = column * tensor.shape()[d] + at[d];
      } else {
        zero |= at[d] != (tensor.shape()[d] - 1) / 2;
      }
    }
    const int64_t place = transposed ? column * size.rows + row : row * size.columns + column;
    values.push_back(zero ? 0 : q[static_cast<size_t>(place)]);
  }
  return values;
}

TEST(Orthogonal, OrthogonalBoxesEqualTheWholeMatrix) {
  Random random(6);
  const struct {
    Shape shape;
    DimensionSet rows, columns;
  } cases[] = {{{64, 24}, 1, 2},      {{24, 64}, 1, 2},     {{7, 7}, 1, 2},
               {{6, 5, 2, 3}, 1, 14}, {{3, 2, 5, 6}, 7, 8}, {{5, 12, 3}, 5, 2},
               {{3, 4, 5, 6}, 4, 8},  {{6, 4, 3, 1}, 1, 2}, {{2, 2, 3}, 1, 4}};
  for (const auto& [shape, rows, columns] : cases) {
    for (const DTypeInfo& info : DTypes()) {
      if (!info.is_float()) continue;
      const Tensor tensor = MakeTensor("q", info.dtype, shape, Orthogonal{1.5, rows, columns});
      const std::vector<float> expected = Definition(tensor);
      const auto size = static_cast<size_t>(info.bytes);
      for (int i = 0; i < 5; ++i) {
        Box box = WholeOf(shape);
        for (size_t d = 0; i > 0 && d < shape.size(); ++d) {
          box.shape[d] = random.In(1, shape[d]);
          box.offset[d] = random.In(0, shape[d] - box.shape[d]);
        }
        const BoxFiller filler(tensor, box);
        std::vector<uint8_t> made(static_cast<size_t>(filler.elements()) * size);
        for (int64_t at = 0; at < filler.elements();) {
          const int64_t count = random.In(1, filler.elements() - at);
          filler.Fill(at, count, &made[static_cast<size_t>(at) * size]);
          at += count;
        }
        const Runs runs(shape, box);
        for (int64_t e = 0; e < filler.elements(); ++e) {
          uint8_t element[8];
          const int64_t index = runs.Start(e / runs.length()) + e % runs.length();
          Encode(expected[static_cast<size_t>(index)], info.dtype, element);
          ASSERT_EQ(std::memcmp(element, &made[static_cast<size_t>(e) * size], size), 0)
              << info.name << " element " << index;
        }
      }
    }
  }
}

TEST(Orthogonal, ThreadsShareAnOrthogonalMatrix) {
  const Tensor tensor = MakeTensor("q", DType::f32, {300, 200}, Orthogonal{1, 1, 2});
  const std::vector<float> expected = Definition(tensor);
  const BoxFiller filler(tensor, WholeOf(tensor.shape()));
  std::vector<float> made(expected.size());
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 6; ++t) {
    threads.emplace_back(
        [&, t] { filler.Fill(t * 10000, 10000, &made[static_cast<size_t>(t) * 10000]); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, expected);
}

TEST(Orthogonal, RoundProductNeverReturnsSubnormals) {
  EXPECT_EQ(RoundProduct(0x1p-50, 0x1p-80), 0);
  EXPECT_EQ(RoundProduct(-0x1p-46, 0x1p-80), -0x1p-126f);
  EXPECT_EQ(RoundProduct(-1 - 0x1p-50, kMaxScale), -0x1p100f);
}

}  // namespace
}  // namespace shardinit
