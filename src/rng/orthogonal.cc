#include "rng/orthogonal.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rng/engines.h"
#include "rng/reflections-inl.h"

namespace shardinit {

ReflectionBlock MakeReflections(int64_t rows, int64_t columns, int64_t block, float* vectors) {
  ReflectionBlock b{
      .first = block * kReflections, .vectors = vectors, .products = {}, .scale = {}, .sign = {}};
  const int64_t count = std::min(kReflections, columns - b.first), height = rows - b.first;
  double squares[kReflections] = {};
  for (int64_t i = 0; i < height; ++i) {
    const float* x = vectors + i * kReflections;
    for (int64_t j = 0; j < kReflections; ++j) {
      squares[j] += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    float& x = vectors[j * kReflections + j];
    const double length = std::sqrt(squares[j]);
    b.sign[j] = x < 0 ? 1 : -1;
    x = static_cast<float>(x < 0 ? static_cast<double>(x) - length
                                 : static_cast<double>(x) + length);
  }
  for (int64_t i = 0; i < height; ++i) {
    const float* v = vectors + i * kReflections;
    for (int64_t j = 0; j < kReflections; ++j) {
      for (int64_t k = j; k < kReflections; ++k) {
        b.products[j][k] += static_cast<double>(v[j]) * static_cast<double>(v[k]);
      }
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    b.scale[j] = b.products[j][j] > 0 ? 2 / b.products[j][j] : 0;
  }
  return b;
}

float RoundProduct(double a, double b) {
  const double value = a * b;
  constexpr double kSmallest = std::numeric_limits<float>::min();
  return std::fabs(value) < kSmallest ? 0 : static_cast<float>(value);
}

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

}  // namespace shardinit
