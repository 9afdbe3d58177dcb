// Counts the rows of a matrix that are zeros, in blocks that threads read apart: rows of a trained
// model that nothing has ever changed, or that were lost.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit {

// Elements that follow one another, whose rows of `length` begin at multiples of it.
class ZeroRows {
 public:
  // No rows are counted if `length` is 0.
  ZeroRows(DType dtype, int64_t length, int64_t first)
      : dtype_(dtype), length_(length), at_(first) {}

  // Adds the next elements.
  void Add(const uint8_t* elements, int64_t count);
  // Adds those of a block that follows this one.
  void Append(const ZeroRows& next);
  int64_t count() const { return count_; }

 private:
  bool AreZeros(const uint8_t* elements, int64_t count) const;

  DType dtype_;
  int64_t length_;
  int64_t at_;              // the place of the next element
  int64_t count_ = 0;       // rows of zeros that began and ended here
  bool head_ = true;        // whether the end of a row that began before is zeros
  bool has_begun_ = false;  // whether a row has begun here
  bool open_ = true;        // whether what is here of the row at `at_` is zeros
};

}  // namespace shardinit
