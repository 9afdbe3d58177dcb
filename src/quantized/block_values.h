// Computes the elements that the codes of a quantized tensor's blocks represent.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "quantized/codes.h"
#include "quantized/widening.h"

namespace shardinit {

// Thread-safe.
class BlockValues {
 public:
  // `stored` reads each part of the widening, which must outlive the object.
  BlockValues(const Widening& widening, std::array<BoxElements, Widening::kParts> stored)
      : widening_(widening), stored_(std::move(stored)) {}

  const Widening& widening() const { return widening_; }
  const BoxElements& stored(Widening::Part part) const { return stored_[part]; }

  // The part of a block that is in a rectangle. Rows and columns count from the rectangle's first.
  struct Block {
    int64_t row, column, end_row, end_column;
    float zero, scale;
  };
  // Returns the blocks that share elements with a rectangle, row by row.
  std::vector<Block> BlocksIn(const Rectangle& part) const;

  // Computes the elements of a rectangle of codes. The strides count elements of `out`. Throws
  // Error (kUsage) if the type cannot hold one.
  void Fill(const Rectangle& part, const uint8_t* codes, int64_t row_stride, int64_t column_stride,
            uint8_t* out) const;

  // Memory to use again.
  struct Scratch {
    std::vector<float> numbers;
    std::vector<uint8_t> table;
  };
  // Returns the element of each code of a block; null if some cannot be elements, which is an error
  // only if they occur, or if an element is a byte.
  const uint8_t* TableOf(const Block& block, Scratch* scratch) const;
  // Writes the element of one code. Returns false if the type cannot hold it.
  bool ElementOf(uint8_t code, const Block& block, uint8_t* out) const;

 private:
  void Compute(const uint8_t* codes, int64_t count, const Block& block, int64_t stride,
               uint8_t* out, Scratch* scratch) const;
  void Multiply(const uint8_t* codes, int64_t count, float zero, float scale, float* out) const;
  void Finish(int64_t count, float* numbers) const;
  void RequireFinite(const uint8_t* codes, int64_t count, float scale, const float* products) const;
  int64_t Store(const std::vector<float>& numbers, int64_t stride, uint8_t* out) const;
  float ScaleOf(const uint8_t* stored, float global) const;
  std::vector<float> ReadScales(const Rectangle& blocks) const;
  std::vector<float> ReadZeros(const Rectangle& blocks) const;

  const Widening& widening_;
  const std::array<BoxElements, Widening::kParts> stored_;
};

}  // namespace shardinit
