// What an initializer lowers to. This set is closed: each alternative has its
// operations in shardinit-values(7).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "expr/program.h"
#include "tensor/box.h"

namespace shardinit {

class CheckedFile;
struct Tensor;

// A member of a distribution: its key in plan.json, its place, and what stands before it where
// people read it; null: they do not.
template <typename Owner, typename Value>
struct Member {
  std::string_view key;
  Value Owner::*place;
  const char* words;
};
template <typename Owner, typename Value>
Member(std::string_view, Value Owner::*, const char*) -> Member<Owner, Value>;

// Each lists its members once: text, plan.json and equality follow.

struct Constant {
  double value;

  static constexpr std::string_view kName = "constant";
  static constexpr auto kMembers = std::tuple(Member{"value", &Constant::value, ""});
};

struct Uniform {  // On [low, high).
  double low, high;

  static constexpr std::string_view kName = "uniform";
  static constexpr auto kMembers =
      std::tuple(Member{"low", &Uniform::low, ""}, Member{"high", &Uniform::high, "to"});
};

struct Normal {
  double mean, std;

  static constexpr std::string_view kName = "normal";
  static constexpr auto kMembers =
      std::tuple(Member{"mean", &Normal::mean, "mean"}, Member{"std", &Normal::std, "std"});
};

struct TruncatedNormal {  // low and high in standard deviations from the mean.
  double mean, std, low, high;

  static constexpr std::string_view kName = "truncated_normal";
  static constexpr auto kMembers = std::tuple(
      Member{"mean", &TruncatedNormal::mean, "mean"}, Member{"std", &TruncatedNormal::std, "std"},
      Member{"low", &TruncatedNormal::low, "low"}, Member{"high", &TruncatedNormal::high, "high"});
};

using ProgramPtr = std::shared_ptr<const Program>;  // Many tensors may share one.

struct Expression {  // A function of the element's index and of draws.
  ProgramPtr program;

  static constexpr std::string_view kName = "expr";
  static constexpr auto kMembers = std::tuple(Member{"text", &Expression::program, ""});
};

// Bit d stands for dimension d; a tensor has at most 32.
using DimensionSet = uint32_t;
std::vector<int64_t> DimensionsOf(DimensionSet set);

// A matrix with orthonormal columns, or rows if these are fewer, uniformly
// distributed, times `gain`. Two sets of the tensor's dimensions, each in row-major
// order, number its rows and its columns; dimension d that is in neither holds
// the matrix at (shape[d] - 1) / 2, and zeros elsewhere.
struct Orthogonal {
  double gain;
  DimensionSet rows, columns;  // The first dimension of all is in `rows`.

  static constexpr std::string_view kName = "orthogonal";
  static constexpr auto kMembers = std::tuple(Member{"gain", &Orthogonal::gain, "gain"},
                                              Member{"rows", &Orthogonal::rows, nullptr},
                                              Member{"columns", &Orthogonal::columns, nullptr});
};

// A matrix with this many zeros in each column, at random places; normal with mean
// 0 elsewhere.
struct Sparse {
  double std;
  int64_t zeros;

  static constexpr std::string_view kName = "sparse";
  static constexpr auto kMembers =
      std::tuple(Member{"std", &Sparse::std, "std"}, Member{"zeros", &Sparse::zeros, "zeros"});
};

inline constexpr int64_t kMaxSparseRows = int64_t{1} << 32;

// Vectors along a dimension, of this length and any direction.
struct Normalized {
  int64_t axis;
  double length;

  static constexpr std::string_view kName = "normalized";
  static constexpr auto kMembers = std::tuple(Member{"axis", &Normalized::axis, "axis"},
                                              Member{"length", &Normalized::length, "length"});
};

// Elements as a file has them, in row-major order, little-endian.
struct FromFile {
  std::string sha256;  // Of the file, in hexadecimal digits.
  // Null in a plan that was read, which says what a tensor holds and makes no values.
  std::shared_ptr<const CheckedFile> file = nullptr;

  static constexpr std::string_view kName = "file";
  static constexpr auto kMembers = std::tuple(Member{"sha256", &FromFile::sha256, "with SHA-256"});
};

// Euclidean norms of another tensor's elements, over those of its dimensions that are 1 here, or
// over all of them.
struct Norm {
  std::string of;                                  // Its path.
  std::shared_ptr<const Tensor> tensor = nullptr;  // Once all tensors are there.

  static constexpr std::string_view kName = "norms";
  static constexpr auto kMembers = std::tuple(Member{"of", &Norm::of, "of"});
};

// Whoever visits it names each alternative (OneOf: several that are alike), so that the compiler
// points at each place that a new one is missing from.
using Distribution = std::variant<Constant, Uniform, Normal, TruncatedNormal, Expression,
                                  Orthogonal, Sparse, Normalized, FromFile, Norm>;

// Calls body(member, value) for each member.
template <typename D, typename Body>
void ForEachMember(D&& distribution, const Body& body) {
  std::apply([&](const auto&... member) { (body(member, distribution.*member.place), ...); },
             std::remove_cvref_t<D>::kMembers);
}

inline bool IsSame(const auto& a, const auto& b) { return a == b; }
inline bool IsSame(const ProgramPtr& a, const ProgramPtr& b) { return a->text == b->text; }

template <typename D>
requires requires { D::kMembers; }
bool operator==(const D& a, const D& b) {
  bool same = true;
  ForEachMember(a, [&](const auto& member, const auto& value) {
    same = same && IsSame(value, b.*member.place);
  });
  return same;
}

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
// checked one by one when they are made, for norms likewise, and for a file, which
// has elements of the tensor's type.
double LargestMagnitude(const Distribution& distribution);

// `normal mean 0 std 0.02`.
std::string InText(const Distribution& distribution);

// The matrix or the vectors that a distribution of more than single elements makes of a
// shape: `256 × 576, of dimensions 0 × 1, 2, 3`. Empty for other distributions.
std::string MatrixInText(const Distribution& distribution, const Shape& shape);

// Random calls for one element.
int64_t DrawsOf(const Distribution& distribution);

// Whether elements are drawn, and so need a stream of random words of their own.
inline bool IsRandom(const Distribution& d) { return DrawsOf(d) > 0; }

}  // namespace shardinit
