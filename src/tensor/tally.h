// How often each value occurs in a stream of stored elements, and what follows
// from that: extremes, mean, quantiles.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace shardinit {

// Neighbouring values counted together. For types of 8 and 16 bits a bin is
// one value. For wider ones it is what shares the sign, the exponent and the
// upper 9 bits of the mantissa when rounded to f32: 1/512 of its magnitude.
struct Bin {
  double lowest, highest;  // That the type has.
  // Halfway to the type's next values: what lies between rounds into the bin.
  double from, to;
  int64_t count;
};

// Of finite elements. Sums are made in the order of the stream.
struct Moments {
  int64_t count = 0;
  double mean = 0, squares = 0;  // Sum of squared distances from the mean.
  double min = std::numeric_limits<double>::infinity(), max = -min;

  void Append(const Moments& next);
  double std() const;  // Of the elements as they are: divided by their number.
};

class Tally {
 public:
  explicit Tally(DType dtype);

  // The moments of these elements alone; none for types of 8 and 16 bits, whose
  // moments follow from the counts.
  Moments Add(const void* elements, int64_t count);
  void Merge(const Tally& other);

  std::vector<Bin> Bins() const;             // With elements, ascending; finite ones only.
  int64_t count() const;                     // Also of what is not finite.
  bool is_exact() const { return narrow_; }  // A bin is one value.

 private:
  int64_t CountOf(size_t key) const { return counts_[0][key] + counts_[1][key]; }
  DType dtype_;
  bool narrow_;
  // Two tables in turn: an element that equals the one before does not wait for it.
  std::array<std::vector<int64_t>, 2> counts_;
};

// The moments of elements that are known by their bins, each being one value.
Moments MomentsOf(std::span<const Bin> bins);

// The smallest value that at least this part of the elements does not exceed;
// within a bin of several values, a linear interpolation.
double Quantile(std::span<const Bin> bins, double part);

}  // namespace shardinit
