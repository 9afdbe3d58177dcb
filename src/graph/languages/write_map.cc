#include "graph/languages/write_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "graph/languages/tensor_patterns.h"
#include "graph/stored/pad.h"
#include "graph/stored/view.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Writes DTensor's placements, which can have segments. DTensor shards in mesh order. So an axis's
// split_factor counts the segments and the parts of axes that are major to it but shard later.
std::string InPlacements(const PartitionSpec& partition, const Mesh& mesh) {
  std::map<int, std::string> placements;
  for (size_t d = 0; d < partition.dimensions.size(); ++d) {
    const DimensionPartition& by = partition.dimensions[d];
    for (size_t i = 0; i < by.axes.size(); ++i) {
      int64_t segments = by.segments;
      for (size_t major = 0; major < i; ++major) {
        if (by.axes[major] < by.axes[i]) continue;
        segments *= mesh.shape[static_cast<size_t>(by.axes[major])];
      }
      placements[by.axes[i]] = fmt::format(
          "{}: {}", mesh.axes[static_cast<size_t>(by.axes[i])],
          segments == 1 ? fmt::format("Shard({})", d)
                        : fmt::format("\"_StridedShard({}, split_factor={})\"", d, segments));
    }
  }
  std::vector<std::string> texts;
  for (const auto& [axis, text] : placements) texts.push_back(text);
  return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

std::string InYaml(const PartitionSpec& partition, const Mesh& mesh) {
  if (partition.IsExtended()) return InPlacements(partition, mesh);
  std::vector<std::string> dimensions;
  bool is_whole = true;
  for (const DimensionPartition& by : partition.dimensions) {
    std::vector<std::string> axes;
    for (const int axis : by.axes) axes.push_back(mesh.axes[static_cast<size_t>(axis)]);
    is_whole &= axes.empty();
    dimensions.push_back(axes.empty()       ? "null"
                         : axes.size() == 1 ? axes[0]
                                            : fmt::format("[{}]", fmt::join(axes, ", ")));
  }
  return is_whole ? "null" : fmt::format("[{}]", fmt::join(dimensions, ", "));
}

// Returns whether a map can express the tensor's sharding. If there are segments, the parts must be
// equal: only then do their borders not depend on the order in which axes shard.
bool IsWritable(const Tensor& tensor, const Mesh& mesh) {
  const PartitionSpec& partition = tensor.partition();
  if (!partition.pins.empty() || partition.IsNested()) return false;
  for (size_t d = 0; d < tensor.shape().size() && partition.IsExtended(); ++d) {
    if (tensor.shape()[d] % DivisorOf(partition.dimensions[d], mesh) != 0) return false;
  }
  return true;
}

// Tensors whose paths differ only in numbers.
struct Group {
  std::string pattern;
  std::vector<const Tensor*> tensors;
  bool is_one = true;  // all are sharded alike
};

std::vector<Group> GroupsOf(const std::vector<Tensor>& tensors) {
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> known;
  for (const Tensor& tensor : tensors) {
    const auto [at, is_new] = known.emplace(WithoutNumbers(tensor.path()), groups.size());
    if (is_new) groups.push_back({at->first, {}});
    Group& group = groups[at->second];
    group.tensors.push_back(&tensor);
    group.is_one &= tensor.partition() == group.tensors.front()->partition();
  }
  // A pattern must not match a tensor that is sharded differently.
  for (Group& group : groups) {
    if (group.pattern.find('*') == group.pattern.npos) continue;
    group.is_one = group.is_one && std::ranges::none_of(groups, [&](const Group& g) {
                     return &g != &group && PathMatches(group.pattern, g.tensors.front()->path()) &&
                            std::ranges::any_of(g.tensors, [&](const Tensor* tensor) {
                              return tensor->partition() != group.tensors.front()->partition();
                            });
                   });
  }
  return groups;
}

// Returns the map's `uneven`, with the first padding of any tensor. Either all have the same
// padding, or each has its own `uneven`, which takes precedence.
std::string UnevenOf(const InitGraph& graph) {
  if (IsPadded(graph)) {
    for (const Tensor& tensor : graph.tensors) {
      const ViewNode& root = tensor.view()->root;
      if (root.operation == nullptr || root.operation->name != "pad") continue;
      const double value = std::get<double>(root.arguments[2]);
      return value == 0 ? "uneven: pad\n" : fmt::format("uneven: {{pad: {}}}\n", value);
    }
  }
  return "uneven: chunk\n";
}

}  // namespace

std::string WriteShardingMap(const InitGraph& graph) {
  const std::vector<Tensor>& tensors = graph.logical();
  bool is_even = true;
  for (const Tensor& tensor : tensors) {
    if (!IsWritable(tensor, graph.mesh)) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}` is sharded as {}, but a map cannot express stages, uneven "
                              "segments or axes one after the other",
                              tensor.path(), InText(tensor.partition(), graph.mesh)));
    }
    for (size_t d = 0; d < tensor.shape().size(); ++d) {
      is_even &= tensor.shape()[d] % PartsOf(tensor.partition().dimensions[d], graph.mesh) == 0;
    }
  }
  std::string text = fmt::format("# The sharding of {} over the mesh {}.\n{}map:\n", graph.name,
                                 InText(graph.mesh), is_even ? "" : UnevenOf(graph));
  for (const Group& group : GroupsOf(tensors)) {
    const auto line = [&](std::string_view pattern, const Tensor& tensor) {
      text += fmt::format("  \"{}\": {}\n", pattern, InYaml(tensor.partition(), graph.mesh));
    };
    if (group.is_one) {
      line(group.pattern, *group.tensors.front());
    } else {
      for (const Tensor* tensor : group.tensors) line(tensor->path(), *tensor);
    }
  }
  return text;
}

}  // namespace shardinit
