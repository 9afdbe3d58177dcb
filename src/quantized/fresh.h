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

// The scales and zeros of one tensor. Thread-safe.
class FreshScales {
 public:
  // `made` reads the new numbers, elements of widening.made. `widening` must outlive the object.
  // Throws Error (kUsage) if no rule is known, or if the rule needs numbers of another type.
  FreshScales(const Widening& widening, BoxElements made);

  // Writes elements of the scales, the zeros or the global scale. Throws Error (kUsage) for numbers
  // without a scale, such as NaN.
  void Fill(Widening::Part part, int64_t first, int64_t count, void* out) const;
  // Returns the factor that makes numbers of a block values of codes, if the rule multiplies.
  // `block` is an element of widening.scales(), and `scale` is its number.
  float FactorOf(int64_t block, float scale) const;
  // Returns a number as it is before it is rounded to the value of a code. `scale` and `zero` are
  // the block's, and `factor` is its FactorOf().
  float Scaled(float number, float scale, float zero, float factor) const;
  // Returns the value of each code, also where numbers are rounded to a -0 that is read as 0.
  std::vector<float> Values() const;

 private:
  // The least and the largest number of a block, and 0.
  struct Range {
    float least = 0, most = 0;
    void Include(Range other);
    float Largest() const;  // magnitude
  };
  std::vector<Range> RangesOf(int64_t first, int64_t count) const;
  // Does the same by reading the numbers of whole rows, or of blocks in one row.
  std::vector<Range> Read(int64_t first, int64_t count) const;
  // Returns the ranges of all blocks, if a block has several rows, and else of the whole tensor.
  const std::vector<Range>& Known() const;
  bool has_zeros() const { return !widening_.parts[Widening::kZeros].path().empty(); }
  float Rounded(float number) const;  // to the type of the numbers
  float Global() const;
  float ScaleFor(Range range) const;
  float NvScaleFor(float largest) const;
  float RangeScaleFor(Range range) const;
  float ZeroFor(Range range) const;
  void FillZeros(const StoredPart& part) const;
  [[noreturn]] void ThrowNoScale(float largest, std::string_view size) const;

  const Widening& widening_;
  const BoxElements made_;
  const int64_t width_, height_;  // blocks in a row, and in a column
  mutable std::once_flag once_;
  mutable std::vector<Range> known_;
};

}  // namespace shardinit
