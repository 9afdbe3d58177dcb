// Defines the mesh of devices: a grid with named axes, row-major, the last axis fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/devices.h"

namespace shardinit {

struct Mesh {
  std::vector<std::string> axes;  // names; a mesh without axes has one rank
  std::vector<int64_t> shape;
  DeviceLayout devices = {};

  int64_t world_size() const;
  // Returns how many ranks apart neighbours along an axis are.
  int64_t StrideOf(int axis) const;
  // IndexOf() returns one index of a rank's coordinate, CoordinateOf() returns all of them.
  int64_t IndexOf(int64_t rank, int axis) const { return rank / StrideOf(axis) % shape[axis]; }
  std::vector<int64_t> CoordinateOf(int64_t rank) const;
  // Returns -1 if the mesh does not have this axis.
  int Find(const std::string& axis) const;
};

// Returns the ranks of all indices on these axes, the last of which is the fastest. The index on
// all other axes is 0.
std::vector<int64_t> RanksAlong(const std::vector<int>& axes, const Mesh& mesh);

// Returns `fsdp=128, tensor=4`.
std::string InText(const Mesh& mesh);

// More ranks than any cluster has, and few enough to count without overflow.
inline constexpr int64_t kMaxWorldSize = int64_t{1} << 24;

}  // namespace shardinit
