// The grid of devices: named axes, row-major, the last axis fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/devices.h"

namespace shardinit {

struct Mesh {
  std::vector<std::string> axes;  // Names; no axes: one rank.
  std::vector<int64_t> shape;
  DeviceLayout devices = {};

  int64_t world_size() const;
  // Along an axis neighbours are this many ranks apart.
  int64_t StrideOf(int axis) const;
  // Of a rank's coordinate the index along one axis, and all of them.
  int64_t IndexOf(int64_t rank, int axis) const { return rank / StrideOf(axis) % shape[axis]; }
  std::vector<int64_t> CoordinateOf(int64_t rank) const;
  // -1: no such axis.
  int Find(const std::string& axis) const;
};

// A rank for each of all indices on these axes, the last of which is the fastest; at 0 on all
// others.
std::vector<int64_t> RanksAlong(const std::vector<int>& axes, const Mesh& mesh);

// `fsdp=128, tensor=4`.
std::string InText(const Mesh& mesh);

// More ranks than any cluster has, few enough to count without overflow.
inline constexpr int64_t kMaxWorldSize = int64_t{1} << 24;

}  // namespace shardinit
