// Generates random matrices with orthonormal columns, uniformly distributed (Haar measure), as the
// contract of values defines them.
//
// Stewart, "The efficient generation of random orthogonal matrices with an application to condition
// estimators" (1980): the orthogonal factor of a matrix of independent normal numbers is a product
// of reflections. Each reflection may come from its own normal vector instead:
//
//   Q = H0 H1 … H(columns-1) D,  Hj = I - 2 vj vjᵀ / vjᵀvj,
//
// Hj maps a normal vector xj, which is 0 before row j, to a multiple of the unit vector ej. D has
// the signs that make the diagonal of the triangular factor positive. A column of Q is the same
// column of D, reflected by the last vector, then by the one before, …, so no column needs another.
//
// Eight reflections are applied together. The products yj = vj · q use the column as it was before
// all eight. The products of the vectors determine what the later reflections subtract from yj.
#pragma once

#include <cstdint>

namespace shardinit {

inline constexpr int64_t kReflections = 8;  // in a block

struct ReflectionBlock {
  int64_t first;         // Both the block's first reflection and the first row where its vectors
                         // are not 0.
  const float* vectors;  // eight per row, from row `first` on; missing ones are 0
  double products[kReflections][kReflections];  // [j][k] = vj · vk, j <= k.
  double scale[kReflections];                   // 2 / vj · vj; 0 if vj is 0
  double sign[kReflections];                    // the block's part of D
};

inline int64_t ReflectionBlocks(int64_t columns) {
  return (columns + kReflections - 1) / kReflections;
}

// Returns the number of vector elements before block `block`, if the blocks' vectors are stored one
// after another.
inline int64_t VectorsBefore(int64_t rows, int64_t block) {
  return kReflections * (block * rows - kReflections * block * (block - 1) / 2);
}

// Returns the element of draw 0 (mean 0, std 1) that is row `row` >= `j` of vector xj.
inline uint64_t ReflectionElement(int64_t rows, int64_t row, int64_t j) {
  return static_cast<uint64_t>(j * rows + row);
}

// Replaces the normal vectors xj in `vectors` by the vectors of the reflections, and computes the
// rest of the block.
ReflectionBlock MakeReflections(int64_t rows, int64_t columns, int64_t block, float* vectors);

// Returns a product, such as an element of Q times a gain, as f32, or 0 if it is subnormal.
float RoundProduct(double a, double b);

}  // namespace shardinit
