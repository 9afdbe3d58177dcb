// Measures the values of tensors, generated on the fly or read from a folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "checkpoint/folder.h"
#include "stats/fit.h"
#include "stats/tally.h"

namespace shardinit {

struct Measurement {
  const Tensor* tensor = nullptr;
  const Tensor* declaring = nullptr;  // the same, or the spec's tensor for a folder's tensor
  Moments moments;                    // moments of the finite elements
  int64_t nans = 0, infinities = 0;
  // Rows of zeros of a matrix in a folder. It has no value if a piece of the matrix splits rows.
  std::optional<int64_t> zero_rows = 0;
  std::vector<double> quantiles;            // quantiles at kQuantiles
  std::vector<int64_t> histogram;           // kBars equal parts from min to max
  std::optional<DeclaredMoments> declared;  // no value: the tensor is a view
  std::optional<Fit> fit;
  // True if the elements contradict the declaration: an element is NaN or infinite and not from a
  // file, a constant has another value, or the fit's probability is below kLeastProbability.
  bool is_wrong = false;
  // True if the elements are bit-identical to the spec's tensor. It has no value if there is no
  // spec, or if the spec has no such tensor.
  std::optional<bool> is_initial;

  int64_t not_finite() const { return nans + infinities; }
};

inline constexpr double kQuantiles[] = {0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999};
inline constexpr size_t kMedian = 4;
inline constexpr int kBars = 20;
inline constexpr double kLeastProbability = 1e-9;

// Reads consecutive elements of a tensor, in the order of the tensor or of a box, as stored. If
// elements have several numbers, it counts and reads numbers, separately (tensor/numbers.h).
using ReadElements = std::function<void(int64_t first, int64_t count, void* out)>;
struct Stretch {
  int64_t elements;
  ReadElements read;         // called from several threads
  int64_t row = 0;           // elements of a row; 0: rows are not checked
  bool splits_rows = false;  // Other stretches have the rest of its rows.
};
// Returns the stretches that make up the tensor with this index in the list.
using StretchesOf = std::function<std::vector<Stretch>(size_t index)>;

StretchesOf Generated(const std::vector<const Tensor*>& tensors);
// Reads each box of a folder once. It does not check that the bytes are the written ones; `verify`
// does.
StretchesOf Stored(const TensorFolder& folder, const std::vector<const Tensor*>& tensors);

// Compares the values with the declarations in `declaring`, which has a tensor of the same type and
// shape for each tensor, in the same order. The result does not depend on `jobs`. `progress`
// receives the number of bytes so far, from several threads.
std::vector<Measurement> Measure(const std::vector<const Tensor*>& tensors,
                                 const std::vector<const Tensor*>& declaring,
                                 const StretchesOf& stretches, int jobs,
                                 const std::function<void(int64_t bytes)>& progress);

}  // namespace shardinit
