// What an initializer lowers to. This set is closed: each alternative has its
// operations in shardinit-values(7).
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <variant>

#include "expr/program.h"
#include "tensor/box.h"

namespace shardinit {

struct Constant {
  double value;
  bool operator==(const Constant&) const = default;
};

struct Uniform {  // On [low, high).
  double low, high;
  bool operator==(const Uniform&) const = default;
};

struct Normal {
  double mean, std;
  bool operator==(const Normal&) const = default;
};

struct TruncatedNormal {  // low and high in standard deviations from the mean.
  double mean, std, low, high;
  bool operator==(const TruncatedNormal&) const = default;
};

struct Expression {                        // A function of the element's index and of draws.
  std::shared_ptr<const Program> program;  // Many tensors may share one.
  bool operator==(const Expression& other) const { return program->text == other.program->text; }
};

// Bit d stands for dimension d; a tensor has at most 32.
using DimensionSet = uint32_t;

// A matrix with orthonormal columns, or rows if these are fewer, uniformly
// distributed, times `gain`. Two sets of the tensor's dimensions, each in row-major
// order, number its rows and its columns; dimension d that is in neither holds
// the matrix at (shape[d] - 1) / 2, and zeros elsewhere.
struct Orthogonal {
  double gain;
  DimensionSet rows, columns;  // The first dimension of all is in `rows`.
  bool operator==(const Orthogonal&) const = default;
};

// A matrix with this many zeros in each column, at random places; normal with mean
// 0 elsewhere.
struct Sparse {
  double std;
  int64_t zeros;
  bool operator==(const Sparse&) const = default;
};

inline constexpr int64_t kMaxSparseRows = int64_t{1} << 32;

// Vectors along a dimension, of this length and any direction.
struct Normalized {
  int64_t axis;
  double length;
  bool operator==(const Normalized&) const = default;
};

using Distribution = std::variant<Constant, Uniform, Normal, TruncatedNormal, Expression,
                                  Orthogonal, Sparse, Normalized>;

// The matrix of an Orthogonal, which is made whole, whatever part of it is wanted.
struct OrthogonalSize {
  int64_t rows, columns;
  double operations, bytes;  // That making it takes, about.
};
OrthogonalSize SizeOf(const Orthogonal& orthogonal, const Shape& shape);

// No matrix is made that takes more.
inline constexpr double kMaxOperations = 2e14, kMaxMatrixBytes = 64e9;

// No element is farther from 0: a normal sample is never 7 standard deviations
// from its mean (shardinit-values(7)). 0 for an expression, whose elements are
// checked one by one when they are made.
double LargestMagnitude(const Distribution& distribution);

// `normal mean 0 std 0.02`.
std::string InText(const Distribution& distribution);

// The matrix or the vectors that a distribution of more than single elements makes of a
// shape: `256 × 576, of dimensions 0 × 1, 2, 3`. Empty for other distributions.
std::string MatrixInText(const Distribution& distribution, const Shape& shape);

// Random calls for one element.
inline int64_t DrawsOf(const Distribution& d) {
  if (const auto* expression = std::get_if<Expression>(&d)) {
    return std::ssize(expression->program->draws);
  }
  if (std::holds_alternative<Sparse>(d)) return 2;  // A value and a place.
  return !std::holds_alternative<Constant>(d);
}

// Whether elements are drawn, and so need a stream of random words of their own.
inline bool IsRandom(const Distribution& d) { return DrawsOf(d) > 0; }

}  // namespace shardinit
