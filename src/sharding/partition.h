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
struct DimensionCut {
  DimensionCut() = default;
  DimensionCut(std::vector<int> by) : axes(std::move(by)) {}
  DimensionCut(std::initializer_list<int> by) : axes(by) {}

  std::vector<int> axes;  // Of the mesh, the major one first.
  int64_t segments = 1;   // 1 where no axis cuts.

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

  // Whether a rank may hold several boxes of a tensor, or nothing of a whole one.
  bool IsExtended() const;
};

// `[fsdp, -, data+tensor]`, `[tensor in 2 segments] on pipe 0, 3`.
std::string InText(const PartitionSpec& spec, const Mesh& mesh);

// In how many parts a dimension is cut, or each of its segments.
int64_t PartsOf(const DimensionCut& cut, const Mesh& mesh);

}  // namespace shardinit
