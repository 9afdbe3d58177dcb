// Computes the scales of quantized tensors from new numbers, by the rules of the libraries that
// define the formats.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "quantized/widening.h"

namespace shardinit {

// The scales of one tensor. Thread-safe.
class FreshScales {
 public:
  // `made` reads the new numbers, elements of widening.made. `widening` must outlive the object.
  // Throws Error (kUsage) if no rule is known, or if the rule needs numbers of another type.
  FreshScales(const Widening& widening, BoxElements made);

  // Writes elements of widening.scales(). Throws Error (kUsage) for numbers without a scale, such
  // as NaN.
  void Fill(int64_t first, int64_t count, void* out) const;
  // Returns the factor that makes numbers of a block values of codes, if the rule multiplies.
  // `block` is an element of widening.scales().
  float FactorOf(int64_t block) const;
  // Returns a number as it is before it is rounded to the value of a code. `scale` is the block's,
  // and `factor` is its FactorOf().
  float Scaled(float number, float scale, float factor) const;

  // Rounds to the type of the numbers.
  float Rounded(float number) const;

 private:
  // Returns the largest magnitude in each of these blocks.
  std::vector<float> LargestIn(int64_t first, int64_t count) const;
  // Does the same by reading the numbers of whole rows, or of blocks in one row.
  std::vector<float> Read(int64_t first, int64_t count) const;
  float ScaleFor(float largest) const;
  [[noreturn]] void ThrowNoScale(float largest, std::string_view size) const;

  const Widening& widening_;
  const BoxElements made_;
  const int64_t width_, height_;  // blocks in a row, and in a column
  mutable std::once_flag once_;
  mutable std::vector<float> largest_;  // of all blocks, if a block has several rows
};

}  // namespace shardinit
