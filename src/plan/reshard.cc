#include "plan/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "base/text.h"

namespace shardinit {
namespace {

Error WrongMesh(std::string message, std::string hint = {}) {
  return Error(ExitCode::kUsage, std::move(message), std::move(hint));
}

Mesh ReadMeshOption(const std::string& text, const Mesh& known) {
  Mesh mesh;
  int64_t ranks = 1;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equals = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, equals);
    int64_t size = 0;
    const char* last = item.data() + item.size();
    const char* first = item.data() + std::min(equals + 1, item.size());
    const auto [stop, error] = std::from_chars(first, last, size);
    if (stop != last || error != std::errc() || size < 1 || size > kMaxWorldSize) {
      throw WrongMesh(fmt::format("`--mesh`: {} is not of the form `axis=size`", Quote(item)),
                      "write it as in `--mesh fsdp=8,tensor=4`");
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
  return mesh;
}

}  // namespace

Plan OnMesh(const Plan& plan, const std::string& mesh, bool allows_uneven) {
  InitGraph graph = plan.graph;
  const Mesh& before = plan.graph.mesh;
  graph.mesh = ReadMeshOption(mesh, before);
  const auto axis_of = [&](int axis) {
    return graph.mesh.Find(before.axes[static_cast<size_t>(axis)]);
  };
  for (Tensor& tensor : graph.tensors) {
    for (Pin& pin : tensor.partition.pins) {
      const int axis = axis_of(pin.axis);
      if (graph.mesh.shape[static_cast<size_t>(axis)] !=
          before.shape[static_cast<size_t>(pin.axis)]) {
        throw WrongMesh(
            fmt::format("`{}` is on some places of mesh axis `{}` alone, and the plan does not say "
                        "on which of another size",
                        tensor.path, before.axes[static_cast<size_t>(pin.axis)]),
            "give the spec, with `--spec`");
      }
      pin.axis = axis;
    }
    std::sort(tensor.partition.pins.begin(), tensor.partition.pins.end());
    for (size_t d = 0; d < tensor.partition.cuts.size(); ++d) {
      DimensionCut& cut = tensor.partition.cuts[d];
      for (int& axis : cut.axes) axis = axis_of(axis);
      if (PartsOf(cut, graph.mesh) == 1) cut.segments = 1;  // As a spec's, on this mesh.
      const int64_t parts = PartsOf(cut, graph.mesh) * cut.segments;
      if (allows_uneven || tensor.shape[d] % parts == 0) continue;
      throw WrongMesh(
          fmt::format("the mesh cuts dimension {} of `{}` ({}) in {} parts, which do not "
                      "divide it",
                      d, tensor.path, tensor.shape[d], parts),
          "`--uneven chunk` allows shorter last parts");
    }
  }
  return MakePlan(std::move(graph));
}

}  // namespace shardinit
