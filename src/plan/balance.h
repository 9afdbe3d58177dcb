// Measures how evenly the ranks of a plan hold its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// A kind is the tensors with one shape, partition and element size: each rank holds equally many
// bytes of each of them.
struct TensorKind {
  const Tensor* tensor;  // The first tensor of the kind; its plan must outlive this.
  int64_t count = 0;

  int64_t bytes_per_element() const { return InfoOf(tensor->dtype()).bytes; }
};

// Returns the kinds in the order of their first tensors.
std::vector<TensorKind> KindsOf(const Plan& plan);

// The bytes of all tensors together on one rank.
struct RankLoad {
  int64_t held = 0;    // all bytes, whichever rank stores them
  int64_t stored = 0;  // bytes in the rank's file
};
RankLoad LoadOf(const Plan& plan, const std::vector<TensorKind>& kinds, int64_t rank);

struct Balance {
  // The bytes of all ranks together, each replica counted; 2^63 - 1 if there are more.
  int64_t held = 0;
  // The bytes that the ranks would hold beyond `held` if each held as much of every tensor as the
  // rank with the largest part, as arrays of equal parts do; 2^63 - 1 if there are more. No file
  // has them.
  int64_t padding = 0;
  // Maps a number of bytes to the number of ranks that hold so many. BalanceOf() enumerates only
  // the indices on axes that make a difference: those that shard something into unequal parts, or
  // that something is pinned to. The map is empty if that still takes more than a million sums.
  std::map<int64_t, int64_t> ranks = {};
};

Balance BalanceOf(const Plan& plan, const std::vector<TensorKind>& kinds);

}  // namespace shardinit
