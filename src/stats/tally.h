// Counts how often each value occurs in a stream of stored elements, and what follows from that:
// extremes, mean, quantiles.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace shardinit {

// Neighbouring values that are counted together. For types of 8 and 16 bits a bin is one value. For
// wider types it holds the values that share the sign, the exponent and the upper 9 bits of the
// mantissa when rounded to f32: 1/512 of the magnitude.
struct Bin {
  double lowest, highest;  // among the type's values
  // These are halfway to the type's next values: what lies between rounds into the bin.
  double from, to;
  int64_t count;
};

// The moments of finite elements. Sums are made in the order of the stream.
struct Moments {
  int64_t count = 0;
  double mean = 0, squares = 0;  // `squares` is the sum of squared distances from the mean.
  double min = std::numeric_limits<double>::infinity(), max = -min;

  void Append(const Moments& next);
  double std() const;  // The population's: divided by the number of elements.
};

class Tally {
 public:
  explicit Tally(DType dtype);

  // Returns the moments of these elements alone. They are empty for types of 8 and 16 bits, whose
  // moments follow from the counts.
  Moments Add(const void* elements, int64_t count);
  void Merge(const Tally& other);

  std::vector<Bin> Bins() const;  // finite, with elements, ascending
  int64_t count() const;          // also counts what is not finite
  int64_t nans() const;
  bool is_exact() const { return narrow_; }  // Whether a bin is one value.

 private:
  int64_t CountOf(size_t key) const { return counts_[0][key] + counts_[1][key]; }
  DType dtype_;
  bool narrow_;
  // Two tables take turns: an element that equals the one before does not wait for it.
  std::array<std::vector<int64_t>, 2> counts_;
  // NaN among elements of wider types: some of them share a bin's bits with infinity.
  int64_t wide_nans_ = 0;
};

// Returns the moments of elements that are known by bins of one value each.
Moments MomentsOf(std::span<const Bin> bins);

// Returns the smallest value that at least this part of the elements does not exceed; within a bin
// of several values, a linear interpolation.
double Quantile(std::span<const Bin> bins, double part);

}  // namespace shardinit
