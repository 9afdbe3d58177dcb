// The grid of devices: named axes, row-major, the last axis fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardinit {

struct Mesh {
  std::vector<std::string> axes;  // Names; no axes: one rank.
  std::vector<int64_t> shape;

  int64_t world_size() const;
  // One index per axis.
  std::vector<int64_t> CoordinateOf(int64_t rank) const;
  // -1: no such axis.
  int Find(const std::string& axis) const;
};

// More ranks than any cluster has, few enough to count without overflow.
inline constexpr int64_t kMaxWorldSize = int64_t{1} << 24;

}  // namespace shardinit
