// Counts how often each value occurs in a stream of stored elements, and computes extremes, mean
// and quantiles from the counts.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace shardinit {

// Neighbouring values that are counted together. For types of 8 and 16 bits a bin is one value. For
// wider types it contains the values that, rounded to f32, share the sign, the exponent and the
// upper 9 bits of the mantissa: 1/512 of the magnitude.
struct Bin {
  double lowest, highest;  // among the type's values
  // Halfway to the type's next values: numbers in between round into the bin.
  double from, to;
  int64_t count;
};

// The moments of finite elements. Sums are computed in the order of the stream.
struct Moments {
  int64_t count = 0;
  double mean = 0, squares = 0;  // `squares` is the sum of squared distances from the mean.
  double min = std::numeric_limits<double>::infinity(), max = -min;

  void Append(const Moments& next);
  double std() const;  // Population standard deviation: divided by the number of elements.
};

class Tally {
 public:
  explicit Tally(DType dtype);

  // Returns the moments of only these elements. They are empty for types of 8 and 16 bits, whose
  // moments follow from the counts.
  Moments Add(const void* elements, int64_t count);
  void Merge(const Tally& other);

  std::vector<Bin> Bins() const;  // finite, not empty, ascending
  int64_t count() const;          // includes elements that are not finite
  int64_t nans() const;
  bool is_exact() const { return narrow_; }  // whether a bin is one value

 private:
  int64_t CountOf(size_t key) const { return counts_[0][key] + counts_[1][key]; }
  DType dtype_;
  bool narrow_;
  // Two tables alternate, so that an element equal to the one before does not wait for its update.
  std::array<std::vector<int64_t>, 2> counts_;
  // The number of NaNs of wider types. Some NaNs share a bin's bits with infinity.
  int64_t wide_nans_ = 0;
};

// Returns the moments of elements that are given as bins of one value each.
Moments MomentsOf(std::span<const Bin> bins);

// Returns the smallest value that at least this part of the elements does not exceed. Interpolates
// linearly within a bin of several values.
double Quantile(std::span<const Bin> bins, double part);

}  // namespace shardinit
