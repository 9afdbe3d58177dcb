// Draws meshes, shapes and partitions from a seed, identically on every machine and compiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "rng/stream.h"

namespace shardinit {

// splitmix64 (Steele, Lea, Flood 2014). The standard library's distributions differ between
// implementations, so they are not used.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Returns a number in [low, high]; a bias of 2^-60 does not matter here.
  int64_t In(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int one_in) { return In(1, one_in) == 1; }

 private:
  uint64_t state_;
};

// Returns a mesh of up to four axes and `most` ranks; some axes have size 1.
inline Mesh RandomMesh(Random& random, int64_t most = 48) {
  Mesh mesh;
  const int64_t axes = random.In(0, 4);
  for (int64_t a = 0; a < axes; ++a) {
    const int64_t room = most / mesh.world_size();
    mesh.axes.push_back("a" + std::to_string(a));
    mesh.shape.push_back(random.In(1, std::min<int64_t>(room, 7)));
  }
  return mesh;
}

// Returns a shape of up to four dimensions and `most` elements; often nothing divides one of them.
inline Shape RandomShape(Random& random, int64_t most = 2000) {
  Shape shape;
  const int64_t dimensions = random.In(0, 4);
  int64_t room = most;
  for (int64_t d = 0; d < dimensions; ++d) {
    shape.push_back(random.In(1, std::min<int64_t>(room, 23)));
    room /= shape.back();
  }
  return shape;
}

// Shards at most one dimension by each mesh axis, in any order, so tuples are common. Some
// dimensions have segments or nested axes, and some of the other axes have a stage. The partition
// is in its simplest form, as in plans.
inline PartitionSpec RandomPartition(Random& random, const Mesh& mesh, const Shape& shape) {
  PartitionSpec spec(shape.size());
  if (shape.empty()) return spec;
  std::vector<int> axes;
  for (size_t a = 0; a < mesh.axes.size(); ++a) axes.push_back(static_cast<int>(a));
  for (size_t a = axes.size(); a > 1; --a) {
    std::swap(axes[a - 1], axes[static_cast<size_t>(random.In(0, static_cast<int64_t>(a) - 1))]);
  }
  for (const int axis : axes) {
    if (random.Chance(4)) {
      const int64_t extent = mesh.shape[static_cast<size_t>(axis)];
      Pin pin{axis, {}};
      for (int64_t i = 0; i < extent; ++i) {
        if (random.Chance(2)) pin.indices.push_back(i);
      }
      const int64_t some = std::ssize(pin.indices);
      if (random.Chance(2) && some > 0 && some < extent) spec.pins.push_back(std::move(pin));
      continue;
    }
    const int64_t d = random.In(0, static_cast<int64_t>(shape.size()) - 1);
    spec.dimensions[static_cast<size_t>(d)].axes.push_back(axis);
  }
  std::sort(spec.pins.begin(), spec.pins.end());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (random.Chance(2) && spec.dimensions[d].axes.size() > 1) {
      for (size_t a = 0; a < spec.dimensions[d].axes.size(); ++a) {
        const bool has_segments = random.Chance(3);
        spec.dimensions[d].nested.push_back(random.In(a == 0, has_segments ? 3 : 1));
      }
      continue;
    }
    if (PartsOf(spec.dimensions[d], mesh) == 1 || shape[d] == 1 || !random.Chance(3)) continue;
    spec.dimensions[d].segments = random.In(2, std::min<int64_t>(shape[d], 5));
  }
  return Simplified(std::move(spec), shape, mesh);
}

inline Tensor MakeTensor(std::string_view path, DType dtype, Shape shape, Distribution distribution,
                         PartitionSpec partition = {}) {
  partition.dimensions.resize(shape.size());
  Tensor tensor(path);
  tensor.Edit() = {.dtype = dtype,
                   .shape = std::move(shape),
                   .distribution = distribution,
                   .partition = std::move(partition)};
  if (IsRandom(distribution)) tensor.set_stream({.key = KeyOf(1, tensor.path())});
  return tensor;
}

}  // namespace shardinit
