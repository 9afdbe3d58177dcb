#include "plan/reshard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/languages/rules.h"
#include "plan/load.h"

namespace shardinit {
namespace {

Error WrongMesh(const std::string& message, std::string hint = {}) {
  return Usage(message, std::move(hint));
}

Mesh ReadMeshOption(const std::string& text, const Mesh& known) {
  Mesh mesh;
  int64_t ranks = 1;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equals = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, equals);
    const int64_t size =
        ParseNumber<int64_t>(std::string_view(item).substr(std::min(equals + 1, item.size())))
            .value_or(0);
    if (size < 1 || name.empty()) {
      throw WrongMesh(fmt::format("`--mesh`: {} is not of the form `axis=size`", Quote(item)),
                      "write it as in `--mesh fsdp=8,tensor=4`");
    }
    if (known.axes.empty()) {
      throw WrongMesh(
          fmt::format("the checkpoint has no mesh, so the dimensions that {} shards are unknown",
                      Quote(name)),
          "add `--sharding`, such as `--sharding fsdpv2`, or give the spec, with `--spec SPEC`");
    }
    if (known.Find(name) < 0) {
      throw WrongMesh(fmt::format("the checkpoint's mesh has no axis {}", Quote(name)),
                      DidYouMean(name, known.axes));
    }
    if (mesh.Find(name) >= 0) throw WrongMesh(fmt::format("mesh axis `{}` is given twice", name));
    if (ranks > kMaxWorldSize / size) {
      throw WrongMesh(fmt::format("the mesh has more than {} ranks", kMaxWorldSize));
    }
    ranks *= size;
    mesh.axes.push_back(name);
    mesh.shape.push_back(size);
    begin = end + 1;
  }
  for (const std::string& axis : known.axes) {
    if (mesh.Find(axis) >= 0) continue;
    mesh.axes.push_back(axis);
    mesh.shape.push_back(1);
  }
  // The devices are known only for the same mesh.
  if (mesh.axes == known.axes && mesh.shape == known.shape) mesh.devices = known.devices;
  return mesh;
}

// Returns a type that specs have, of about the same size. A sharding depends on nothing else.
std::string_view NameInSpec(DType dtype) {
  const DType of_size = InfoOf(dtype).bytes == 8 ? DType::u64 : DType::u8;
  return InfoOf(FindDTypeOfSpecs(InfoOf(dtype).name).value_or(of_size)).name;
}

std::string InJson(std::string_view text) { return JsonWriter().Value(text).Take(); }

// Returns a spec of these tensors. Specs limit the bytes within braces, so there are few.
std::string SpecOf(const InitGraph& graph, const std::string& uneven) {
  std::string spec = fmt::format("shardinit: 1\nname: {}\n", InJson(graph.name));
  if (!uneven.empty()) spec += fmt::format("uneven: {}\n", InJson(uneven));
  // If the checkpoint has no mesh, `--mesh` or the sharding declares one.
  if (!graph.mesh.axes.empty()) spec += "mesh:\n  axes:\n";
  for (size_t a = 0; a < graph.mesh.axes.size(); ++a) {
    spec += fmt::format("    {}: {}\n", InJson(graph.mesh.axes[a]), graph.mesh.shape[a]);
  }
  spec += "modules:\n";
  for (const Tensor& tensor : graph.tensors) {
    spec += fmt::format("  {}: {{shape: [{}], dtype: {}, init: zeros}}\n", InJson(tensor.path()),
                        fmt::join(tensor.shape(), ", "), NameInSpec(tensor.dtype()));
  }
  return spec;
}

// Loads the plan with the new sharding. Fails if the sharding uses logical axes.
Plan LoadResharded(const PlanRequest& request, Diagnostics& diagnostics) {
  try {
    return LoadPlan(request, diagnostics);
  } catch (const InvalidSpec& e) {
    const bool has_axes = std::ranges::none_of(
        e.diagnostics(), [](const Diagnostic& d) { return d.hint == kNoLogicalAxes; });
    if (has_axes) throw;
    throw WrongMesh(fmt::format("{} shards by logical axes, which a checkpoint does not record",
                                Quote("--sharding " + request.spec.sharding)),
                    "give the spec that the checkpoint was made from, with `--spec SPEC`");
  }
}

}  // namespace

Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven,
            const std::string& hint_for_uneven) {
  InitGraph graph = plan.graph;
  const Mesh& before = plan.graph.mesh;
  graph.mesh = ReadMeshOption(mesh, before);
  const auto axis_of = [&](int axis) {
    return graph.mesh.Find(before.axes[static_cast<size_t>(axis)]);
  };
  FormPool forms;
  for (Tensor& tensor : graph.tensors) {
    PartitionSpec partition = tensor.partition();
    for (Pin& pin : partition.pins) {
      const int axis = axis_of(pin.axis);
      if (graph.mesh.shape[static_cast<size_t>(axis)] !=
          before.shape[static_cast<size_t>(pin.axis)]) {
        throw WrongMesh(fmt::format("`{}` is on a stage of mesh axis `{}`, and its stage on an "
                                    "axis of another size is unknown",
                                    tensor.path(), before.axes[static_cast<size_t>(pin.axis)]),
                        "give the spec, with `--spec SPEC`");
      }
      pin.axis = axis;
    }
    std::sort(partition.pins.begin(), partition.pins.end());
    for (size_t d = 0; d < partition.dimensions.size(); ++d) {
      DimensionPartition& by = partition.dimensions[d];
      for (int& axis : by.axes) axis = axis_of(axis);
      // A spec on this mesh would also have one segment here.
      if (PartsOf(by, graph.mesh) == 1) by.segments = 1;
      const int64_t parts = DivisorOf(by, graph.mesh);
      if (allows_uneven || tensor.shape()[d] % parts == 0) continue;
      throw WrongMesh(
          fmt::format(
              "the mesh shards dimension {} of `{}` ({}) in {} parts, which do not divide it", d,
              tensor.path(), tensor.shape()[d], parts),
          hint_for_uneven);
    }
    tensor.Edit().partition = Simplified(std::move(partition), tensor.shape(), graph.mesh);
    forms.ShareForm(tensor);
  }
  return MakePlan(std::move(graph));
}

Plan ShardAs(const Plan& plan, const std::string& path, const std::string& mesh,
             const std::string& sharding, const std::string& uneven, Diagnostics& diagnostics) {
  const InitGraph& before = plan.graph;
  PlanRequest request;
  request.spec.path = path;
  request.spec.text = SpecOf(before, uneven);
  request.spec.mesh = mesh;
  request.spec.sharding = sharding;
  const Plan resharded = LoadResharded(request, diagnostics);

  if (resharded.graph.drawn) {
    throw WrongMesh(
        "`uneven: pad` changes shapes, and a checkpoint does not record the shapes without padding",
        "give the spec, with `--spec SPEC`, or use `uneven: chunk`");
  }
  InitGraph graph = before;
  if (resharded.graph.mesh.axes != before.mesh.axes ||
      resharded.graph.mesh.shape != before.mesh.shape) {
    graph.mesh = resharded.graph.mesh;
  }
  std::unordered_map<std::string_view, const Tensor*> by_path;
  for (const Tensor& tensor : resharded.graph.tensors) by_path.emplace(tensor.path(), &tensor);
  FormPool forms;
  for (Tensor& tensor : graph.tensors) {
    tensor.Edit().partition = by_path.at(tensor.path())->partition();
    forms.ShareForm(tensor);
  }
  return MakePlan(std::move(graph));
}

}  // namespace shardinit
