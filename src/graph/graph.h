// What there is: every tensor with its shape, type, distribution and sharding.
// All names, expressions and rules of the spec are resolved; nothing here
// depends on where it was written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "init/distribution.h"
#include "sharding/mesh.h"
#include "sharding/partition.h"
#include "tensor/dtype.h"

namespace shardinit {

struct Tensor {
  std::string path;
  std::string draw_path;  // The explicit `key:`; empty: drawn under its own path.
  DType dtype = DType::f32;
  Shape shape;
  Distribution distribution;
  PartitionSpec partition;  // One entry per dimension.
  uint64_t key = 0;         // Of its random stream (rng/stream.h); 0 if it needs none.

  int64_t elements() const { return ElementCount(shape); }
  int64_t bytes() const { return elements() * InfoOf(dtype).bytes; }
};

enum class Replicas { kDedupe, kFull };

struct InitGraph {
  std::string name;
  std::string engine;
  int64_t seed = 0;
  Mesh mesh;
  Replicas replicas = Replicas::kDedupe;
  std::vector<Tensor> tensors;  // In the order of the spec.
};

}  // namespace shardinit
