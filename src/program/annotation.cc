#include "program/annotation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace shardinit::program {

// Writes what XLA writes: the numbers of parts, and the devices part by part as a transposed grid.
std::string ShardingText(const Mesh& mesh, const PartitionSpec& partition, bool stacked) {
  std::vector<int> order;  // mesh axes in the order in which they number the parts
  std::vector<int64_t> parts;
  if (stacked) parts.push_back(1);
  for (const DimensionPartition& by : partition.dimensions) {
    parts.push_back(PartsOf(by, mesh));
    order.insert(order.end(), by.axes.begin(), by.axes.end());
  }
  int64_t parts_in_all = 1, copies = 1;
  for (const int64_t count : parts) parts_in_all *= count;
  if (parts_in_all == 1) return "{replicated}";
  std::vector<bool> shards(mesh.axes.size());
  for (const int axis : order) shards[axis] = true;
  for (size_t axis = 0; axis < shards.size(); ++axis) {
    if (shards[axis]) continue;
    order.push_back(static_cast<int>(axis));
    copies *= mesh.shape[axis];
  }
  if (copies > 1) parts.push_back(copies);
  std::string text = fmt::format("{{devices=[{}]<=", fmt::join(parts, ","));
  // Axes of one device, and axes that stay neighbours, need not be distinguished.
  std::vector<int64_t> extents;
  std::vector<int> number(mesh.shape.size(), -1);
  for (size_t axis = 0; axis < mesh.shape.size(); ++axis) {
    if (mesh.shape[axis] == 1) continue;
    number[axis] = static_cast<int>(extents.size());
    extents.push_back(mesh.shape[axis]);
  }
  std::vector<int> permutation;
  for (const int axis : order) {
    if (number[axis] >= 0) permutation.push_back(number[axis]);
  }
  if (std::ranges::is_sorted(permutation)) {
    text += fmt::format("[{}]", mesh.world_size());
  } else {
    text += fmt::format("[{}]T({})", fmt::join(extents, ","), fmt::join(permutation, ","));
  }
  if (copies > 1) text += " last_tile_dim_replicate";
  return text + "}";
}

std::string ShardyText(const Mesh& mesh, const PartitionSpec& partition, bool stacked) {
  std::vector<std::string> dimensions;
  if (stacked) dimensions.emplace_back("{}");
  for (const DimensionPartition& by : partition.dimensions) {
    std::vector<std::string> axes;
    for (const int axis : by.axes) axes.push_back(fmt::format("\"{}\"", mesh.axes[axis]));
    dimensions.push_back(fmt::format("{{{}}}", fmt::join(axes, ", ")));
  }
  return fmt::format("#sdy.sharding<@mesh, [{}]>", fmt::join(dimensions, ", "));
}

std::string ShardyMeshText(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    axes.push_back(fmt::format("\"{}\"={}", mesh.axes[axis], mesh.shape[axis]));
  }
  return fmt::format("sdy.mesh @mesh = <[{}]>", fmt::join(axes, ", "));
}

void RequireAnnotation(const Mesh& mesh, const Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw Usage(
        fmt::format("`{}` {}, which annotations of a program cannot express", tensor.path(), why),
        "write the program of one rank with `--rank R`");
  };
  if (!tensor.partition().pins.empty()) refuse("is on a part of the mesh");
  for (size_t d = 0; d < tensor.partition().dimensions.size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    if (by.segments > 1) refuse(fmt::format("is sharded in {} segments", by.segments));
    if (!by.nested.empty()) refuse("is sharded by one axis after the other");
    const int64_t parts = PartsOf(by, mesh);
    if (tensor.shape()[d] % parts != 0) {
      refuse(fmt::format("has {} elements in {} parts along dimension {}", tensor.shape()[d], parts,
                         d));
    }
  }
}

}  // namespace shardinit::program
