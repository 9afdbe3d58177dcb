// Who holds what of one tensor: which box a rank holds, which ranks hold equal ones, and
// which of them stores it. Nothing else computes ranks from coordinates or boxes.
//
// A PartitionSpec names, for each dimension, the mesh axes that cut it; the
// first of several is the major one. A dimension of n elements over axes
// (a, b) has k = |a| * |b| parts, and the rank at coordinate c holds part
//
//   p = c[a] * |b| + c[b]     the elements [min(n, p*w), min(n, (p+1)*w)),
//                             w = ceil(n / k)
//
// which is the rule of torch.chunk, DTensor's Shard and torch_xla: 10 elements
// over 4 parts are 3, 3, 3, 1, and 5 over 4 are 2, 2, 1, 0. (JAX allows only
// k that divides n, where all rules agree.) Axes that cut no dimension hold
// replicas: of those ranks the one at coordinate 0 on all such axes, which is
// the lowest, is the first replica.
//
// So rank 0 holds the largest part of every dimension, and is the first
// replica of everything: no rank holds more bytes than rank 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sharding/mesh.h"
#include "sharding/partition.h"
#include "tensor/box.h"

namespace shardinit {

// Whether a box that several ranks hold is stored once, or by each of them.
enum class Replicas { kDedupe, kFull };

bool IsEmpty(const Box& box);

// Of what it is made from, all of which outlives it.
class Sharding {
 public:
  Sharding(const Mesh& mesh, Replicas replicas, const Shape& shape, const PartitionSpec& partition)
      : mesh_(mesh), replicas_(replicas), shape_(shape), partition_(partition) {}

  // What `rank` holds; if its shape has zeros, nothing.
  Box BoxOn(int64_t rank) const;

  // The first replica's rank: the lowest that holds what `rank` does, if that is anything.
  int64_t FirstHolder(int64_t rank) const;
  bool IsFirstHolder(int64_t rank) const { return FirstHolder(rank) == rank; }
  // How many ranks hold the same as any one does.
  int64_t holders() const;

  // Whether the file of `rank` has what it holds, if that is anything.
  bool Stores(int64_t rank) const { return replicas_ == Replicas::kFull || IsFirstHolder(rank); }

  // How many different boxes with elements there are over all ranks.
  int64_t CountBoxes() const;
  // Calls visit(rank, box) for each of them, with its first holder, ascending.
  template <typename F>
  void ForEachBox(F visit) const;

  // No rank holds more of anything.
  static constexpr int64_t kLargestRank = 0;

  // Whether each rank holds the same of tensors of one shape, whatever the names of axes.
  bool operator==(const Sharding& other) const;

 private:
  // A mesh axis that cuts, by its effect: of two ranks, r and r + stride, where one axis goes
  // on, each holds the next part.
  struct Cut {
    int64_t stride, parts;
    bool operator==(const Cut&) const = default;
  };
  std::vector<std::vector<Cut>> Cuts() const;  // Of each dimension.
  std::vector<int> CuttingAxes() const;        // Ascending.

  const Mesh& mesh_;
  const Replicas replicas_;
  const Shape& shape_;
  const PartitionSpec& partition_;
};

template <typename F>
void Sharding::ForEachBox(F visit) const {
  // Only the axes that cut the tensor move; on all others the first holder is at 0.
  const std::vector<int> axes = CuttingAxes();
  for (int64_t rank = 0;;) {
    if (const Box box = BoxOn(rank); !IsEmpty(box)) visit(rank, box);
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

}  // namespace shardinit
