// Defines the distributions that initializers lower to. The set is closed: shardinit-values(7)
// lists the operations of each alternative.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "expr/program.h"
#include "tensor/box.h"
#include "tensor/source.h"

namespace shardinit {

class CheckedFile;

// A member of a distribution: its key in plan.json, its place in the struct, and the word before it
// in text for people. The text omits a member whose `words` is null.
template <typename Owner, typename Value>
struct Member {
  std::string_view key;
  Value Owner::*place;
  const char* words;
};
template <typename Owner, typename Value>
Member(std::string_view, Value Owner::*, const char*) -> Member<Owner, Value>;

// Each distribution lists its members once. Text, plan.json and equality follow from the list.

struct Constant {
  double value;

  static constexpr std::string_view kName = "constant";
  static constexpr auto kMembers = std::tuple(Member{"value", &Constant::value, ""});
};

struct Uniform {  // on [low, high)
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

struct TruncatedNormal {  // low and high are in standard deviations from the mean.
  double mean, std, low, high;

  static constexpr std::string_view kName = "truncated_normal";
  static constexpr auto kMembers = std::tuple(
      Member{"mean", &TruncatedNormal::mean, "mean"}, Member{"std", &TruncatedNormal::std, "std"},
      Member{"low", &TruncatedNormal::low, "low"}, Member{"high", &TruncatedNormal::high, "high"});
};

using ProgramPtr = std::shared_ptr<const Program>;  // Many tensors may share one program.

struct Expression {  // A function of the element's index and of draws.
  ProgramPtr program;

  static constexpr std::string_view kName = "expr";
  static constexpr auto kMembers = std::tuple(Member{"text", &Expression::program, ""});
};

// Bit d represents dimension d. A tensor has at most 32 dimensions.
using DimensionSet = uint32_t;
std::vector<int64_t> DimensionsOf(DimensionSet set);

// A uniformly distributed matrix with orthonormal columns (or rows, if there are fewer rows), times
// `gain`. Two sets of the tensor's dimensions, each in row-major order, number its rows and its
// columns. A dimension d in neither set contains the matrix at index (shape[d] - 1) / 2, and zeros
// at all other indices.
struct Orthogonal {
  double gain;
  DimensionSet rows, columns;  // `rows` contains the first dimension of the two sets.

  static constexpr std::string_view kName = "orthogonal";
  static constexpr auto kMembers = std::tuple(Member{"gain", &Orthogonal::gain, "gain"},
                                              Member{"rows", &Orthogonal::rows, nullptr},
                                              Member{"columns", &Orthogonal::columns, nullptr});
};

// A matrix with `zeros` zeros at random places of each column. Its other elements are normal with
// mean 0.
struct Sparse {
  double std;
  int64_t zeros;

  static constexpr std::string_view kName = "sparse";
  static constexpr auto kMembers =
      std::tuple(Member{"std", &Sparse::std, "std"}, Member{"zeros", &Sparse::zeros, "zeros"});
};

inline constexpr int64_t kMaxSparseRows = int64_t{1} << 32;

// Vectors along dimension `axis`, each of this length and random direction.
struct Normalized {
  int64_t axis;
  double length;

  static constexpr std::string_view kName = "normalized";
  static constexpr auto kMembers = std::tuple(Member{"axis", &Normalized::axis, "axis"},
                                              Member{"length", &Normalized::length, "length"});
};

// The elements of a file, in row-major order, little-endian.
struct FromFile {
  std::string sha256;  // the file's hash, in hexadecimal digits
  // Null in a plan that was read: such a plan describes tensors, but cannot generate values.
  std::shared_ptr<const CheckedFile> file = nullptr;

  static constexpr std::string_view kName = "file";
  static constexpr auto kMembers = std::tuple(Member{"sha256", &FromFile::sha256, "with SHA-256"});
};

// The elements of an existing tensor from a source of the spec.
struct FromSource {
  std::string source;
  std::string tensor;  // the name of the source's tensor; empty: the tensor's own path
  // The index of each element in that tensor: an expression for each of its dimensions. If empty,
  // the shapes are equal, and so are the indices.
  std::vector<ProgramPtr> index = {};
  SourceTensorPtr data = nullptr;  // null in a plan that was read, as `file` in FromFile

  static constexpr std::string_view kName = "source";
  static constexpr auto kMembers = std::tuple(Member{"source", &FromSource::source, ""},
                                              Member{"tensor", &FromSource::tensor, ""},
                                              Member{"index", &FromSource::index, "at"});
};

// Vectors along all dimensions except `axis` (rows, if it is 0) that resemble a source's vectors:
// each element is normal around the mean there, with `std` times the standard deviation there.
struct RowsLike {
  std::string source, tensor;
  int64_t axis;
  int64_t rows;  // The number of the source's rows that are used, from the first.
  double std;
  SourceTensorPtr data = nullptr;  // null in a plan that was read

  static constexpr std::string_view kName = "rows_like";
  static constexpr auto kMembers =
      std::tuple(Member{"source", &RowsLike::source, ""}, Member{"tensor", &RowsLike::tensor, ""},
                 Member{"axis", &RowsLike::axis, "axis"}, Member{"rows", &RowsLike::rows, "rows"},
                 Member{"std", &RowsLike::std, "std"});
};

// Parts that follow one another along dimension `axis`, each generated like a tensor of its own
// shape. The draws of a part are numbered after the draws of the parts before it.
struct PartList;
using PartsPtr = std::shared_ptr<const PartList>;
struct Parts {
  int64_t axis;
  PartsPtr of;

  static constexpr std::string_view kName = "parts";
  static constexpr auto kMembers =
      std::tuple(Member{"axis", &Parts::axis, "along dimension"}, Member{"of", &Parts::of, ""});
};

// The Euclidean norms of another tensor's elements, taken over the dimensions whose extent is 1
// here, or over all dimensions.
struct Norm {
  std::string of;  // the other tensor's path

  static constexpr std::string_view kName = "norms";
  static constexpr auto kMembers = std::tuple(Member{"of", &Norm::of, "of"});
};

// A visitor names each alternative (OneOf names several similar ones), so that the compiler reports
// each visitor that lacks a new alternative.
using Distribution =
    std::variant<Constant, Uniform, Normal, TruncatedNormal, Expression, Orthogonal, Sparse,
                 Normalized, FromFile, FromSource, RowsLike, Parts, Norm>;

struct Part {
  int64_t length;  // along the axis
  Distribution distribution;
};
struct PartList {
  std::vector<Part> parts;
};
// Returns the shape of a part of a tensor.
inline Shape ShapeOf(const Part& part, const Parts& parts, Shape whole) {
  whole[static_cast<size_t>(parts.axis)] = part.length;
  return whole;
}
// Calls `visit` for each source tensor whose elements the distribution uses, with the names of the
// source and the tensor, and the tensor.
void ForEachSource(const Distribution& distribution,
                   const std::function<void(const std::string& source, const std::string& tensor,
                                            const SourceTensorPtr& data)>& visit);

template <typename D, typename Body>
void ForEachMember(D&& distribution, const Body& body) {
  std::apply([&](const auto&... member) { (body(member, distribution.*member.place), ...); },
             std::remove_cvref_t<D>::kMembers);
}

inline bool IsSame(const auto& a, const auto& b) { return a == b; }
inline bool IsSame(const ProgramPtr& a, const ProgramPtr& b) { return a->text == b->text; }
inline bool IsSame(const std::vector<ProgramPtr>& a, const std::vector<ProgramPtr>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return IsSame(x, y); });
}

bool IsSame(const PartsPtr& a, const PartsPtr& b);

template <typename D>
requires requires { D::kMembers; }
bool operator==(const D& a, const D& b) {
  bool same = true;
  ForEachMember(a, [&](const auto& member, const auto& value) {
    same = same && IsSame(value, b.*member.place);
  });
  return same;
}

// Returns whether two distributions are bit-identical, including the data that they refer to.
// Distributions that compare equal may differ in the sign of a zero.
bool AreIdentical(const Distribution& a, const Distribution& b);

// The size of an Orthogonal's matrix. The whole matrix is generated, whichever part is needed.
struct OrthogonalSize {
  int64_t rows, columns;
  double operations, bytes;  // approximate cost of generating it
};
OrthogonalSize SizeOf(const Orthogonal& orthogonal, const Shape& shape);

// A matrix that costs more is an error.
inline constexpr double kMaxOperations = 2e14, kMaxMatrixBytes = 64e9;

// Returns an upper bound for the magnitude of all elements: a normal sample is never 7 standard
// deviations from its mean (shardinit-values(7)). Returns 0 for expressions and norms, whose
// elements are checked when generated, for sources, and for files, whose elements have the tensor's
// type.
double LargestMagnitude(const Distribution& distribution);

// Returns the distribution as text, such as `normal mean 0 std 0.02`.
std::string InText(const Distribution& distribution);

// Returns the matrix or the vectors of a distribution for a shape, as text: `256 × 576, of
// dimensions 0 × 1, 2, 3`. Returns an empty text for distributions of single elements.
std::string MatrixInText(const Distribution& distribution, const Shape& shape);

// Returns the number of random calls for one element.
int64_t DrawsOf(const Distribution& distribution);

// Returns whether elements are drawn, and so need their own stream of random words.
inline bool IsRandom(const Distribution& d) { return DrawsOf(d) > 0; }

}  // namespace shardinit
