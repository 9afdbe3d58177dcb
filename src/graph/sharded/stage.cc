#include "graph/sharded/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace shardinit {
namespace {

constexpr std::string_view kMeshPrefix = "mesh_";

}  // namespace

StageBinder::StageBinder(Building& building, const Mesh& mesh)
    : building_(building), mesh_(mesh), scope_(building.names, mesh) {}

std::vector<Pin> StageBinder::Bind(const StageSpec& stage) {
  const auto [known, is_new] = axes_.try_emplace(&stage);
  if (is_new) {
    const bool lacks = MayLack(building_.spec.mesh, building_.spec.wrong.Has("mesh"));
    for (const auto& on : stage.value) {
      known->second.push_back(mesh_.Find(on.name.value));
      if (known->second.back() >= 0 || lacks || on.name.value.empty()) continue;
      ReportUnknown("mesh axis", on.name, mesh_.axes, building_.diagnostics);
    }
  }
  std::vector<Pin> pins;
  for (size_t i = 0; i < stage.value.size(); ++i) {
    const int axis = known->second[i];
    if (axis < 0) continue;
    const int64_t extent = mesh_.shape[axis];
    std::set<int64_t> indices;
    for (const ExprPtr& expr : stage.value[i].value) {
      if (expr == nullptr) continue;
      const auto index =
          EvaluateInteger(*expr, scope_, 0, extent - 1,
                          fmt::format("the index on mesh axis `{}` ({})", mesh_.axes[axis], extent),
                          building_.diagnostics);
      if (index) indices.insert(*index);
    }
    if (indices.empty() || std::ssize(indices) == extent) continue;
    pins.push_back({axis, {indices.begin(), indices.end()}});
  }
  std::ranges::sort(pins);
  return pins;
}

int StageBinder::MeshScope::AxisOf(const std::string& name) const {
  if (!name.starts_with(kMeshPrefix) || names_.Has(name)) return -1;
  return mesh_.Find(name.substr(kMeshPrefix.size()));
}

std::optional<Value> StageBinder::MeshScope::Find(const std::string& name,
                                                  Diagnostics& diagnostics) const {
  const int axis = AxisOf(name);
  return axis < 0 ? names_.Find(name, diagnostics) : Value(mesh_.shape[axis]);
}

std::vector<std::string> StageBinder::MeshScope::Names() const {
  std::vector<std::string> names = names_.Names();
  for (const std::string& axis : mesh_.axes) names.push_back(std::string(kMeshPrefix) + axis);
  return names;
}

}  // namespace shardinit
