// Random matrices with orthonormal columns, uniformly distributed among all of them (Haar measure),
// as the contract of values defines them.
//
// Stewart, "The efficient generation of random orthogonal matrices with an application to condition
// estimators" (1980): the orthogonal factor of a matrix of independent normal numbers is a product
// of reflections, and each of these may as well come from its own normal vector:
//
//   Q = H0 H1 … H(columns-1) D,  Hj = I - 2 vj vjᵀ / vjᵀvj,
//
// Here Hj maps a normal vector xj, 0 before row j, to a multiple of the unit vector ej, and D has
// the signs that make the diagonal of the triangular factor positive. A column of Q is that column
// of D, reflected by the last vector, then by the one before, …: no column needs another.
//
// Eight reflections are applied together. The products yj = vj · q use the column as it was before
// all eight; what the later of the eight reflections subtract from them follows from the products
// of the vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "rng/stream.h"

namespace shardinit {

inline constexpr int64_t kReflections = 8;  // in a block

struct ReflectionBlock {
  int64_t first;         // The block's first reflection is also the first row where its vectors are
                         // not 0.
  const float* vectors;  // eight to a row, from row `first` on; missing ones are 0
  double products[kReflections][kReflections];  // [j][k] = vj · vk, j <= k.
  double scale[kReflections];                   // 2 / vj · vj; 0 if vj is 0
  double sign[kReflections];                    // the block's part of D
};

inline int64_t ReflectionBlocks(int64_t columns) {
  return (columns + kReflections - 1) / kReflections;
}

// The number of vector elements before those of block `block`, if the blocks' vectors lie one after
// another.
inline int64_t VectorsBefore(int64_t rows, int64_t block) {
  return kReflections * (block * rows - kReflections * block * (block - 1) / 2);
}

// Row `row` >= `j` of vector xj is this element of draw 0, normal with mean 0 and std 1.
inline uint64_t ReflectionElement(int64_t rows, int64_t row, int64_t j) {
  return static_cast<uint64_t>(j * rows + row);
}

// Turns the normal vectors xj in `vectors` into those of the reflections, and computes the rest of
// the block.
ReflectionBlock MakeReflections(int64_t rows, int64_t columns, int64_t block, float* vectors);

// Returns a product, such as an element of Q times a gain, as f32; 0 instead of a subnormal number.
float RoundProduct(double a, double b);

// Makes the whole matrix, rows >= columns, row-major. This is the readable reference.
std::vector<float> OrthogonalMatrix(const Stream& stream, int64_t rows, int64_t columns,
                                    double gain);

}  // namespace shardinit
