// Measures how evenly the ranks of a plan hold its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// The tensors with one shape, partition and element size. Each rank holds equally many bytes of
// each.
struct TensorKind {
  const Tensor* tensor;  // the first tensor of the kind; its plan must outlive this struct
  int64_t count = 0;

  int64_t bytes_per_element() const { return InfoOf(tensor->dtype()).bytes; }
};

// Returns the kinds in the order of their first tensors.
std::vector<TensorKind> KindsOf(const Plan& plan);

// The bytes of all tensors on one rank.
struct RankLoad {
  int64_t held = 0;    // all bytes, whichever rank stores them
  int64_t stored = 0;  // bytes in the rank's file
};
RankLoad LoadOf(const Plan& plan, const std::vector<TensorKind>& kinds, int64_t rank);

struct Balance {
  // The bytes of all ranks, counting every replica; 2^63 - 1 on overflow.
  int64_t held = 0;
  // The extra bytes if every rank held as much of each tensor as the rank with the largest part, as
  // arrays with equal parts do; 2^63 - 1 on overflow. Files do not contain them.
  int64_t padding = 0;
  // Maps a number of bytes to the number of ranks that hold that many. BalanceOf() enumerates only
  // indices on axes that matter: axes that shard a tensor unequally or that a tensor is pinned to.
  // Empty if that still takes more than a million sums.
  std::map<int64_t, int64_t> ranks = {};
};

Balance BalanceOf(const Plan& plan, const std::vector<TensorKind>& kinds);

}  // namespace shardinit
