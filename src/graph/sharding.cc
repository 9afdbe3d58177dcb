#include "graph/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "graph/rule_language.h"

namespace shardinit {

std::vector<int> BindAxes(const AxisList& list, const Mesh& mesh, std::vector<int>* used,
                          const Building& building) {
  std::vector<int> axes;
  for (const auto& name : list.value) {
    const int axis = mesh.Find(name.value);
    if (axis < 0) {
      if (MayLack(building.spec.mesh, building.spec.wrong.Has("mesh"))) continue;
      ReportUnknown("mesh axis", name, mesh.axes, building.diagnostics);
    } else if (std::find(used->begin(), used->end(), axis) != used->end()) {
      building.diagnostics.Error(name.span,
                                 fmt::format("mesh axis `{}` would cut a tensor twice", name.value),
                                 "each mesh axis may cut one dimension of a tensor, once");
    } else {
      axes.push_back(axis);
      used->push_back(axis);
    }
  }
  return axes;
}

Sharder::Sharder(Building& building, const Mesh& mesh) : building_(building), mesh_(mesh) {
  if (building.spec.has_rules) language_ = std::make_unique<RuleLanguage>(building, mesh);
}

void Sharder::Shard(WrittenTensors& written) {
  for (size_t i = 0; i < written.tensors.size(); ++i) {
    if (written.specs[i] == nullptr) continue;
    Tensor& tensor = written.tensors[i];
    const TensorSpec& spec = *written.specs[i];
    if (auto partition = PartitionOf(spec, tensor.path, tensor.shape, nullptr)) {
      tensor.partition.cuts = std::move(partition->cuts);
    }
    tensor.partition.cuts.resize(tensor.shape.size());
    CheckDivides(spec, tensor);
  }
  // For the mistakes in their axes.
  for (const TensorSpec* spec : written.shapeless) PartitionOf(*spec, {}, {}, nullptr);
}

void Sharder::Explain(const TensorSpec& spec, const Tensor& tensor, ShardingNotes* notes) {
  PartitionOf(spec, tensor.path, tensor.shape, notes);
  if (spec.shard) notes->shard = spec.shard->span;
  for (const DimensionCut& cut : tensor.partition.cuts) {
    for (const int axis : cut.axes) {
      const auto& written = building_.spec.mesh[static_cast<size_t>(axis)];
      if (!written.value) continue;
      notes->mesh.push_back({written.name.value, TextOf(*written.value),
                             fmt::to_string(mesh_.shape[static_cast<size_t>(axis)]),
                             SpanOf(*written.value)});
    }
  }
}

void Sharder::CheckUse() {
  if (language_ != nullptr) language_->CheckUse();
}

std::optional<PartitionSpec> Sharder::PartitionOf(const TensorSpec& spec, std::string_view path,
                                                  const Shape& shape, ShardingNotes* notes) {
  std::optional<PartitionSpec> partition;
  if (spec.axes && language_ != nullptr) {  // Whose mistakes show even where it has no say.
    partition = language_->Shard(path, shape, spec.axes->value, spec.shard ? nullptr : notes);
  }
  if (spec.shard) {
    partition = ExplicitOf(spec);
    partition->cuts.resize(shape.size());
  } else if (spec.wrong.Has("axes") || spec.wrong.Has("shard")) {
    partition.reset();
  }
  return partition;
}

const PartitionSpec& Sharder::ExplicitOf(const TensorSpec& spec) {
  const auto [it, is_new] = explicit_.try_emplace(&spec);
  if (is_new) {
    std::vector<int> used;
    for (const AxisList& list : spec.shard->value) {
      it->second.cuts.emplace_back(BindAxes(list, mesh_, &used, building_));
    }
  }
  return it->second;
}

void Sharder::CheckDivides(const TensorSpec& spec, const Tensor& tensor) {
  const ModelSpec& model = building_.spec;
  const auto& uneven = spec.uneven ? spec.uneven : model.uneven;
  if (uneven && uneven->value == "chunk") return;
  if (spec.wrong.Has("uneven") || (!spec.uneven && model.wrong.Has("uneven"))) return;
  bool divides = true;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    divides = divides && tensor.shape[d] % PartsOf(tensor.partition.cuts[d], mesh_) == 0;
  }
  if (divides || !uneven_.insert(&spec).second) return;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int64_t parts = PartsOf(tensor.partition.cuts[d], mesh_);
    if (tensor.shape[d] % parts == 0) continue;
    std::vector<std::string> axes;
    for (const int axis : tensor.partition.cuts[d].axes)
      axes.push_back("`" + mesh_.axes[axis] + "`");
    building_.diagnostics.Error(
        spec.from ? spec.span : SpanOf(*spec.shape[d]),
        fmt::format("mesh {} {} ({}) {} not divide dimension {} of `{}` ({})",
                    axes.size() == 1 ? "axis" : "axes", fmt::join(axes, " × "), parts,
                    axes.size() == 1 ? "does" : "do", d, tensor.path, tensor.shape[d]),
        fmt::format("use a multiple of {}, leave the dimension whole, or allow "
                    "shorter last shards with `uneven: chunk`",
                    parts));
  }
}

}  // namespace shardinit
