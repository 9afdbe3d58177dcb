// Warns about redundant ranks: ranks along an axis that shards nothing, which all hold the same,
// and ranks that hold nothing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/table.h"
#include "graph/warnings/warnings.h"
#include "sharding/sharding.h"
#include "spec/yaml.h"

namespace shardinit {
namespace {

// Returns the axes that shard or pin any tensor.
std::set<int> BusyAxes(const InitGraph& graph) {
  std::set<int> busy;
  for (const Tensor& tensor : graph.tensors) {
    if (busy.size() == graph.mesh.axes.size()) break;
    for (const DimensionPartition& by : tensor.partition().dimensions)
      busy.insert(by.axes.begin(), by.axes.end());
    for (const Pin& pin : tensor.partition().pins) busy.insert(pin.axis);
  }
  return busy;
}

// Names that trainers give to axes for replicas of the whole model.
constexpr std::string_view kReplicaAxes[] = {"replica", "replicas", "replicate", "dp_replicate"};

// Returns whether a language of `sharding` chooses the axes itself.
bool IsChosen(const Node& node) {
  if (node.IsScalar()) return node.text == "auto";
  return std::ranges::any_of(node.entries, [](const Node::Entry& entry) {
    return (entry.key != nullptr && entry.key->text == "auto") || IsChosen(*entry.value);
  });
}

// Returns the axes that determine whether a rank holds any of the tensor: axes that pin it, and
// axes that may leave parts without elements.
std::vector<int> AxesThatMatter(const Tensor& tensor, const Mesh& mesh) {
  std::vector<int> axes;
  for (const Pin& pin : tensor.partition().pins) axes.push_back(pin.axis);
  for (size_t d = 0; d < tensor.partition().dimensions.size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    if (tensor.shape()[d] % DivisorOf(by, mesh) == 0) continue;
    axes.insert(axes.end(), by.axes.begin(), by.axes.end());
  }
  return axes;
}

// Returns the ranks that hold nothing, among the ranks with index 0 on all axes except `axes`. The
// other ranks hold as much as these.
std::vector<int64_t> EmptyRanks(const InitGraph& graph, std::set<int>* axes) {
  for (const Tensor& tensor : graph.tensors) {
    const std::vector<int> more = AxesThatMatter(tensor, graph.mesh);
    if (more.empty()) return {};  // Every rank holds a part of this one.
    axes->insert(more.begin(), more.end());
  }
  std::vector<int64_t> empty = RanksAlong({axes->begin(), axes->end()}, graph.mesh);
  std::vector<const Tensor*> seen;  // Layers have the same few partitions.
  constexpr size_t kMostSeen = 64;
  // Bounds the time if many tensors have their own stages. Beyond it, the mesh is not a slip.
  constexpr int64_t kMostWork = 1 << 22;
  int64_t work = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (empty.empty()) break;
    const auto is_same = [&](const Tensor* other) {
      return other->partition() == tensor.partition() && other->shape() == tensor.shape();
    };
    if (std::ranges::any_of(seen, is_same)) continue;
    if (seen.size() == kMostSeen) seen.erase(seen.begin());
    seen.push_back(&tensor);
    work += std::ssize(empty);
    if (work > kMostWork) return {};
    const Sharding sharding(graph.mesh, graph.replicas, tensor.shape(), tensor.partition());
    std::erase_if(
        empty, [&](int64_t rank) { return sharding.IsOn(rank) && sharding.ElementsOn(rank) > 0; });
  }
  return empty;
}

}  // namespace

void WarnOfIdleMeshAxes(const WarningContext& context) {
  const ModelSpec& spec = context.building.spec;
  const Mesh& mesh = context.graph.mesh;
  const std::set<int> busy = BusyAxes(context.graph);
  const bool is_chosen = spec.sharding && IsChosen(*spec.sharding->root);
  std::vector<std::string> batch;
  if (spec.training.batch) batch = ValuesOf(spec.training.batch->value);
  for (const auto& axis : spec.mesh) {
    const int a = mesh.Find(axis.name.value);
    if (a < 0 || busy.count(a) != 0 || Contains(batch, axis.name.value) ||
        Contains(kReplicaAxes, axis.name.value))
      continue;
    // Axes of an included file or of --mesh may be for the replicas of a batch.
    if (!context.IsOwn(axis.name.span) && !busy.empty() && !is_chosen) continue;
    const int64_t size = mesh.shape[static_cast<size_t>(a)];
    if (size == 1) continue;
    std::vector<std::string> all = batch;
    all.push_back(axis.name.value);
    context.Warn(
        axis.name.span,
        fmt::format("mesh axis `{}` shards nothing: the {} ranks along it hold the same boxes",
                    axis.name.value, size),
        fmt::format("shard a dimension with it, or declare that it only divides the batch: "
                    "`training: {{batch: [{}]}}`",
                    fmt::join(all, ", ")));
  }
}

void WarnOfEmptyRanks(const WarningContext& context) {
  const Mesh& mesh = context.graph.mesh;
  std::set<int> axes;
  const std::vector<int64_t> empty = EmptyRanks(context.graph, &axes);
  if (empty.empty()) return;
  int64_t along = 1;
  std::vector<std::string> names, coordinate;
  for (const int a : axes) {
    const auto axis = static_cast<size_t>(a);
    along *= mesh.shape[axis];
    names.push_back(fmt::format("`{}`", mesh.axes[axis]));
    coordinate.push_back(fmt::format("{} {}", mesh.axes[axis], mesh.IndexOf(empty[0], a)));
  }
  const int64_t world = mesh.world_size();
  const int64_t count = std::ssize(empty) * (world / along);
  const auto place = std::ranges::find_if(context.building.spec.mesh, [&](const auto& axis) {
    return axis.name.value == mesh.axes[static_cast<size_t>(*axes.begin())];
  });
  context.Warn(
      place->name.span,
      fmt::format("{} of {} ranks hold{} nothing: rank {}, at {}, has no part of any tensor", count,
                  world, count == 1 ? "s" : "", empty[0], fmt::join(coordinate, ", ")),
      fmt::format("make {} smaller, or give each rank along {} a stage, or a part of a "
                  "larger dimension",
                  fmt::join(names, " or "), names.size() == 1 ? "it" : "them"));
}

}  // namespace shardinit
