// Defines fillers, which generate the elements of drawn tensors, one for each kind of distribution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "graph/graph.h"
#include "rng/sampler.h"

namespace shardinit {

// Neighbours, starting at a global linear index.
struct Neighbours {
  int64_t index, count;
};

// Returns the neighbours from an element of the runs on: the rest of its run, but at most `most`.
inline Neighbours NeighboursAt(const Runs& runs, int64_t element, int64_t most) {
  const int64_t column = element % runs.length();
  return {runs.Start(element / runs.length()) + column, std::min(most, runs.length() - column)};
}

// Generates elements of one tensor. It is safe to use from several threads.
class Filler {
 public:
  virtual ~Filler() = default;

  // See BoxFiller::Prepare.
  virtual void Prepare() const {}

  // Returns whether many elements at once take less time than the same elements in parts.
  virtual bool wants_long_stretches() const { return false; }

  // Writes elements first … first + count - 1 of the runs, one run after another, as stored bytes.
  virtual void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const = 0;
};

// Each of these is defined in its own file.
std::unique_ptr<const Filler> MakeFiller(const Expression& expression, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const FromFile& from_file, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const FromSource& from_source, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const Norm& norm, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const Normalized& normalized, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const RowsLike& rows_like, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const Parts& parts, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const Orthogonal& orthogonal, const Tensor& tensor);
std::unique_ptr<const Filler> MakeFiller(const Sparse& sparse, const Tensor& tensor);

// The number of elements drawn or computed at a time. An expression's slots stay in the first-level
// cache, and the cost of choosing an operation is hidden.
inline constexpr int64_t kTile = 512;

// Writes elements first … first + count - 1 of the runs, one run after another, encoded as `dtype`.
void DrawRuns(const Runs& runs, const Sampler& sampler, Stream stream, int64_t first, int64_t count,
              DType dtype, void* out);

}  // namespace shardinit
