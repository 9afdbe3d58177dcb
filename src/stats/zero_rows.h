// Counts the rows of a matrix that are zeros, in blocks that threads read separately. In a trained
// model, such rows were never changed or were lost.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit {

// Consecutive elements, whose rows of `length` begin at multiples of it.
class ZeroRows {
 public:
  // If `length` is 0, no rows are counted.
  ZeroRows(DType dtype, int64_t length, int64_t first)
      : dtype_(dtype), length_(length), at_(first) {}

  // Adds the next elements.
  void Add(const uint8_t* elements, int64_t count);
  // Adds the elements of the block after this one.
  void Append(const ZeroRows& next);
  int64_t count() const { return count_; }

 private:
  bool AreZeros(const uint8_t* elements, int64_t count) const;

  DType dtype_;
  int64_t length_;
  int64_t at_;              // the place of the next element
  int64_t count_ = 0;       // rows of zeros that began and ended here
  bool head_ = true;        // whether the rest of a row that began before is zeros
  bool has_begun_ = false;  // whether a row has begun here
  bool open_ = true;        // whether the part here of the row at `at_` is zeros
};

}  // namespace shardinit
