// How evenly the ranks of a plan hold its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// Tensors of which every rank holds equally many bytes: of one shape and partition, and elements of
// one size.
struct TensorKind {
  const Tensor* tensor;  // The first of them; its plan must outlive this.
  int64_t count = 0;

  int64_t bytes_per_element() const { return InfoOf(tensor->dtype).bytes; }
};

// In the order of their first tensors.
std::vector<TensorKind> KindsOf(const Plan& plan);

// Of all tensors together, in bytes.
struct RankLoad {
  int64_t held = 0;    // Whoever stores it.
  int64_t stored = 0;  // In the rank's file.
};
RankLoad LoadOf(const Plan& plan, const std::vector<TensorKind>& kinds, int64_t rank);

struct Balance {
  // Of all ranks together, replicas each time; 2^63 - 1 if it is more.
  int64_t held = 0;
  // What the ranks would hold more than `held` if each held as much of every tensor as the one with
  // the largest part, as arrays of equal parts do; 2^63 - 1 if it is more. No file has it.
  int64_t padding = 0;
  // How many ranks hold so many bytes. Only the indices on axes are counted out that make a
  // difference: those that cut something into unequal parts, or that something is pinned to. Empty
  // where this would still be more than a million sums.
  std::map<int64_t, int64_t> ranks = {};
};

Balance BalanceOf(const Plan& plan, const std::vector<TensorKind>& kinds);

}  // namespace shardinit
