// Defines shapes and boxes (a shard is a box), and converts between positions in a box and in its
// tensor. Callers have checked that a shape's element count fits 63 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardinit {

using Shape = std::vector<int64_t>;
inline constexpr size_t kMaxRank = 32;  // HDF5's limit

// The elements offset[d] <= i[d] < offset[d] + shape[d] of a larger tensor.
struct Box {
  Shape offset;
  Shape shape;

  bool operator==(const Box&) const = default;
};

// Returns the element count, which is 1 for a scalar (no dimensions).
inline int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

inline Box WholeOf(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

// Describes a box in its tensor's row-major order: `count` runs of `length` consecutive elements.
// Runs are numbered in the box's own row-major order.
//
// Trailing dimensions that the box contains entirely are merged into the run. Example: in a [4, 6,
// 8] tensor, the box [1:3, 2:4, :] has 2 runs of 2 * 8 elements, which start 48 apart.
class Runs {
 public:
  // A dimension that numbers runs. Neighbours in it start `stride` apart.
  struct Dimension {
    int64_t extent, stride;
  };

  Runs(const Shape& global, const Box& box);
  // Creates runs of `length` elements, the first from `start` on; the last dimension is the
  // fastest.
  Runs(int64_t start, std::vector<Dimension> dimensions, int64_t length);

  int64_t length() const { return length_; }
  int64_t count() const { return count_; }
  // Returns the global linear index of the first element of a run.
  int64_t Start(int64_t run) const;
  // Returns the end (exclusive) of the runs `run`, `run` + 1, … that start `stride()` apart.
  int64_t EndOfStride(int64_t run) const;
  int64_t stride() const { return stride_; }
  // Returns the dimensions that number runs; the last is the fastest.
  std::span<const Dimension> outer() const { return outer_; }

 private:
  std::vector<Dimension> outer_;
  int64_t length_ = 1, count_ = 1, base_ = 0, stride_ = 0;
};

}  // namespace shardinit
