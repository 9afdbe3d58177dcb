// Computes which boxes of a tensor each rank holds, which ranks hold equal boxes, and which of them
// stores a box. No other code computes ranks from coordinates or boxes.
//
// A PartitionSpec lists, for each dimension, the mesh axes that shard it, the major one first. A
// dimension of n elements over axes (a, b) has k = |a| * |b| parts, and the rank at coordinate c
// holds part
//
//   p = c[a] * |b| + c[b]     the elements [min(n, p*w), min(n, (p+1)*w)),
//                             w = ceil(n / k)
//
// torch.chunk, DTensor's Shard and torch_xla use this rule: 10 elements over 4 parts are 3, 3, 3,
// 1, and 5 over 4 are 2, 2, 1, 0. (JAX requires that k divides n, where all rules agree.)
//
// With s segments, the dimension is first split into s parts by the same rule, and the rank holds
// part p of each: up to s boxes, as in DTensor's _StridedShard. If several dimensions have
// segments, a rank's boxes are all combinations.
//
// Nested axes apply in turn. Each splits what the axes before it left to the rank, joined, into
// segments, and the segments into parts, as DTensor does. 10 elements over (a, b) of 2 and 2 are 3,
// 2, 3, 2.
//
// Ranks that differ only on axes that shard no dimension hold replicas. The rank at coordinate 0 on
// all such axes, which is the lowest, is the first replica. If the tensor is pinned to indices of
// an axis, only ranks with these indices hold replicas, and the lowest of the indices replaces 0.
//
// So, unless axes are nested, the first rank that holds anything holds the largest part of every
// segment. At given indices of the pinned axes, the lowest rank is the first replica of everything
// there, and no rank with these indices holds more bytes. If nested axes have segments, another
// rank may hold the most: 7 elements over 2, and each part in 3 segments over 2, are 2, 2, 3, 0.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/mesh.h"
#include "sharding/partition.h"
#include "tensor/box.h"

namespace shardinit {

// Decides if a box that several ranks hold is stored once or by each rank.
enum class Replicas { kDedupe, kFull };

// How a tensor is sharded. The constructor's arguments must outlive the Sharding.
class Sharding {
 public:
  Sharding(const Mesh& mesh, Replicas replicas, const Shape& shape, const PartitionSpec& partition)
      : mesh_(mesh), replicas_(replicas), shape_(shape), partition_(partition) {}

  // Returns the boxes that `rank` holds, without empty ones, in the row-major order of their
  // segments. Joined along each dimension, in that order, they are the rank's local tensor.
  std::vector<Box> BoxesOn(int64_t rank) const {
    std::vector<Box> boxes;
    FindBoxesOn(rank, &boxes);
    return boxes;
  }
  // Finds the same boxes in memory that a caller can reuse for many tensors.
  void FindBoxesOn(int64_t rank, std::vector<Box>* boxes) const;
  // Returns the number of elements in these boxes.
  int64_t ElementsOn(int64_t rank) const;

  // Returns whether `rank` has the indices that the tensor is pinned to.
  bool IsOn(int64_t rank) const;
  // Returns the first replica's rank: the lowest that holds the same as `rank`, if it holds
  // anything.
  int64_t FirstHolder(int64_t rank) const;
  bool IsFirstHolder(int64_t rank) const { return IsOn(rank) && FirstHolder(rank) == rank; }
  // Returns how many ranks hold the same boxes, for any rank that holds anything.
  int64_t holders() const;

  // Returns whether the file of `rank` stores the boxes that the rank holds, if any.
  bool Stores(int64_t rank) const {
    return replicas_ == Replicas::kFull ? IsOn(rank) : IsFirstHolder(rank);
  }

  // Returns how many different non-empty boxes all ranks hold.
  int64_t CountBoxes() const;
  // Calls visit(rank, part, box) for each of these boxes. `rank` is the box's first holder,
  // ascending, and `part` is the box's number among that rank's boxes.
  template <typename F>
  void ForEachBox(F visit) const;

  // Returns the lowest rank that holds anything.
  int64_t LowestRank() const;
  // Returns a rank that holds the most elements.
  int64_t LargestRank() const;

  // Returns whether each rank holds the same part of tensors of one shape, whatever the names of
  // axes. Pinned axes must be the same ones.
  bool operator==(const Sharding& other) const;

 private:
  struct Interval {
    int64_t start, length;
  };
  // The effect of a mesh axis that shards: of two ranks r and r + stride, one step apart on the
  // axis, r + stride holds the next part. 0 segments: the axis acts as one with the step before.
  struct Step {
    int64_t segments, stride, parts;
    bool operator==(const Step&) const = default;
  };
  using Steps = std::vector<Step>;
  struct Place {
    int64_t stride, extent;
    std::vector<int64_t> indices;
    bool operator==(const Place&) const = default;
  };

  // Returns part number `part` of an extent that is split into `parts`.
  static Interval Chunk(int64_t extent, int64_t parts, int64_t part);
  // Joins the `intervals` and splits them into segments and each segment into parts. Returns part
  // number `part` of each segment, without empty results.
  static std::vector<Interval> TakePart(const std::vector<Interval>& intervals, int64_t segments,
                                        int64_t parts, int64_t part);
  std::vector<Interval> IntervalsOf(size_t dimension, int64_t rank) const;
  int64_t PartOf(size_t dimension, int64_t rank) const;
  std::vector<Steps> StepsOf() const;     // one per dimension
  std::vector<Place> PlacesOf() const;    // one per pin
  std::vector<int> ShardingAxes() const;  // ascending

  const Mesh& mesh_;
  const Replicas replicas_;
  const Shape& shape_;
  const PartitionSpec& partition_;
};

template <typename F>
void Sharding::ForEachBox(F visit) const {
  // Only the axes that shard the tensor move. On all others the first holder is at its lowest
  // index.
  const std::vector<int> axes = ShardingAxes();
  for (int64_t rank = LowestRank();;) {
    const std::vector<Box> boxes = BoxesOn(rank);
    for (size_t part = 0; part < boxes.size(); ++part) visit(rank, part, boxes[part]);
    size_t a = axes.size();
    for (; a > 0; --a) {
      const int axis = axes[a - 1];
      const int64_t stride = mesh_.StrideOf(axis), index = mesh_.IndexOf(rank, axis);
      if (index + 1 < mesh_.shape[axis]) {
        rank += stride;
        break;
      }
      rank -= index * stride;
    }
    if (a == 0) return;
  }
}

// Returns the simplest partition that gives each rank the same part of a tensor of this shape.
// Nested axes act as one if that has the same borders. So equal plans have equal bytes, and axes
// are nested only where needed.
PartitionSpec Simplified(PartitionSpec partition, const Shape& shape, const Mesh& mesh);

// Returns whether each rank holds the same part of a dimension of this extent. Both shardings must
// have the same axes, in any order.
bool ShardAlike(int64_t extent, const DimensionPartition& a, const DimensionPartition& b,
                const Mesh& mesh);

}  // namespace shardinit
