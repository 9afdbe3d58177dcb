// Describes a tensor's partition: which mesh axes shard each dimension, and which ranks hold it.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "sharding/mesh.h"

namespace shardinit {

// How one dimension is sharded. The dimension is split into `segments`, and each segment is sharded
// over the axes. So a rank has a part of every segment, for example of gate and of up, if one
// follows the other. (This is DTensor's _StridedShard with split_factor = segments.)
//
// In a nested sharding, each axis shards the parts that the axes before it left to a rank, as
// DTensor's placements do. Its borders differ if the axes do not divide the dimension.
struct DimensionPartition {
  DimensionPartition() = default;
  DimensionPartition(std::vector<int> by) : axes(std::move(by)) {}
  DimensionPartition(std::initializer_list<int> by) : axes(by) {}

  std::vector<int> axes;  // mesh axes, the major one first
  int64_t segments = 1;   // 1 if no axis shards, or if the sharding is nested
  // For each axis: the number of segments in which it shards the rest, or 0 if it acts as one with
  // the axis before it. Empty if all axes act as one.
  std::vector<int64_t> nested = {};

  bool operator==(const DimensionPartition&) const = default;
};

// The limit for all dimensions of a tensor together, which bounds the number of boxes of one rank.
inline constexpr int64_t kMaxSegments = 1 << 16;

// Restricts the tensor to ranks with one of these indices on the axis, such as a pipeline's stage.
// The axis shards no dimension. The indices are ascending and do not cover the whole axis.
struct Pin {
  int axis;
  std::vector<int64_t> indices;

  auto operator<=>(const Pin&) const = default;
};

struct PartitionSpec {
  PartitionSpec() = default;
  explicit PartitionSpec(size_t rank) : dimensions(rank) {}
  PartitionSpec(std::initializer_list<DimensionPartition> of) : dimensions(of) {}

  std::vector<DimensionPartition> dimensions;  // one per dimension
  std::vector<Pin> pins = {};                  // by axis, ascending

  bool operator==(const PartitionSpec&) const = default;

  // Returns the segments of each dimension, or an empty list if each is 1.
  std::vector<int64_t> segments() const;

  bool IsNested() const;  // Returns whether any dimension is nested.

  // Returns true if it has more than the axes of each dimension: segments, nested axes or pins.
  bool IsExtended() const;
};

// Returns `[fsdp, -, data+tensor]`, `[tensor in 2 segments] on pipe 0, 3`, `[tensor then fsdp]`.
std::string InText(const PartitionSpec& spec, const Mesh& mesh);

// Returns the number of parts of a dimension, or of each of its segments.
int64_t PartsOf(const DimensionPartition& by, const Mesh& mesh);

// Returns a divisor: if it divides the extent, all parts of the dimension are equally long.
int64_t DivisorOf(const DimensionPartition& by, const Mesh& mesh);

// Returns an upper bound for a rank's boxes along the dimension.
int64_t SegmentsOf(const DimensionPartition& by);

}  // namespace shardinit
