// Which mesh axes cut which dimension of a tensor, and which ranks hold any of it.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "sharding/mesh.h"

namespace shardinit {

// How one dimension is cut. In `segments` first, and each of these over the axes: a rank has a part
// of every segment, as of gate and up, which lie behind one another. (DTensor's _StridedShard with
// split_factor = segments.)
//
// If it is nested, one axis after the other cuts what those before it left to a rank, as DTensor's
// placements do: its borders are others where the axes do not divide the dimension.
struct DimensionCut {
  DimensionCut() = default;
  DimensionCut(std::vector<int> by) : axes(std::move(by)) {}
  DimensionCut(std::initializer_list<int> by) : axes(by) {}

  std::vector<int> axes;  // Of the mesh, the major one first.
  int64_t segments = 1;   // 1 where no axis cuts, or where it is nested.
  // For each axis in how many segments it cuts what is left, 0 where it is as one with the axis in
  // front of it. Empty: all axes are as one.
  std::vector<int64_t> nested = {};

  bool operator==(const DimensionCut&) const = default;
};

// Of all dimensions of a tensor together: what bounds the boxes of one rank.
inline constexpr int64_t kMaxSegments = 1 << 16;

// Only ranks with one of these indices on the axis, which cuts nothing, hold any of the tensor: a
// pipeline's stage. Ascending; not all indices of the axis.
struct Pin {
  int axis;
  std::vector<int64_t> indices;

  auto operator<=>(const Pin&) const = default;
};

struct PartitionSpec {
  PartitionSpec() = default;
  explicit PartitionSpec(size_t dimensions) : cuts(dimensions) {}
  PartitionSpec(std::initializer_list<DimensionCut> of) : cuts(of) {}

  std::vector<DimensionCut> cuts;  // One per dimension.
  std::vector<Pin> pins = {};      // By axis, ascending.

  bool operator==(const PartitionSpec&) const = default;

  // Of each dimension; empty if each is 1.
  std::vector<int64_t> segments() const;

  bool IsNested() const;  // Any dimension of it.

  // Whether it says more than the axes of each dimension: segments, what is nested, or pins.
  bool IsExtended() const;
};

// `[fsdp, -, data+tensor]`, `[tensor in 2 segments] on pipe 0, 3`, `[tensor then fsdp]`.
std::string InText(const PartitionSpec& spec, const Mesh& mesh);

// In how many parts a dimension is cut, or each of its segments.
int64_t PartsOf(const DimensionCut& cut, const Mesh& mesh);

// What divides a dimension whose parts are all equally long.
int64_t DivisorOf(const DimensionCut& cut, const Mesh& mesh);

// An upper bound of the boxes that a rank has along the dimension.
int64_t SegmentsOf(const DimensionCut& cut);

}  // namespace shardinit
