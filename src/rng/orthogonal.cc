#include "rng/orthogonal.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

}  // namespace shardinit
