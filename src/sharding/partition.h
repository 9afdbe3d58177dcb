// Which box of a tensor a rank holds.
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

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/mesh.h"
#include "tensor/box.h"

namespace shardinit {

// Per dimension the indices of the mesh axes that cut it.
using PartitionSpec = std::vector<std::vector<int>>;

// `[fsdp, -, data+tensor]`.
std::string InText(const PartitionSpec& spec, const Mesh& mesh);

// In how many parts a dimension is cut.
int64_t PartsOf(const std::vector<int>& axes, const Mesh& mesh);

// The box at `coordinate`; its shape may hold zeros: then the rank has nothing.
Box BoxAt(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh,
          const std::vector<int64_t>& coordinate);

bool IsEmpty(const Box& box);

// Whether `coordinate` is 0 on every axis that cuts nothing.
bool IsFirstReplica(const PartitionSpec& spec, const std::vector<int64_t>& coordinate);

// How many different boxes with elements there are over all ranks.
int64_t CountBoxes(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh);

}  // namespace shardinit
