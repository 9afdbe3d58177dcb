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
    if (CheckFits(spec, *written.places[i], tensor)) CheckDivides(spec, tensor);
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
    int64_t boxes = 1;
    for (const CutSpec& written : spec.shard->value) {
      DimensionCut& cut =
          it->second.cuts.emplace_back(BindAxes(written.axes, mesh_, &used, building_));
      if (written.segments == nullptr) continue;
      const int64_t segments =
          EvaluateInteger(*written.segments, building_.names, 1, kMaxSegments / boxes, "`segments`",
                          building_.diagnostics)
              .value_or(1);
      // A dimension that nothing cuts is one box.
      if (PartsOf(cut, mesh_) > 1) boxes *= cut.segments = segments;
    }
  }
  return it->second;
}

bool Sharder::CheckFits(const TensorSpec& spec, const Span& place, const Tensor& tensor) {
  const auto report = [&](std::string message, std::string hint) {
    if (!reported_.insert(&spec).second) return;
    building_.diagnostics.Error(spec.shard ? spec.shard->span : place, std::move(message),
                                std::move(hint));
  };
  bool fits = true;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const DimensionCut& cut = tensor.partition.cuts[d];
    if (cut.segments > tensor.shape[d]) {
      fits = false;
      report(fmt::format("dimension {} of `{}` ({}) cannot have {} segments", d, tensor.path,
                         tensor.shape[d], cut.segments),
             "each has at least one element");
    }
    for (const Pin& pin : tensor.partition.pins) {
      if (std::find(cut.axes.begin(), cut.axes.end(), pin.axis) == cut.axes.end()) continue;
      fits = false;
      report(
          fmt::format("mesh axis `{}` would cut dimension {} of `{}`, whose stage is at {} of it",
                      mesh_.axes[pin.axis], d, tensor.path, fmt::join(pin.indices, ", ")),
          "a mesh axis either cuts a tensor or says which ranks hold it");
    }
  }
  return fits;
}

void Sharder::CheckDivides(const TensorSpec& spec, const Tensor& tensor) {
  const ModelSpec& model = building_.spec;
  const auto& uneven = spec.uneven ? spec.uneven : model.uneven;
  if (uneven && uneven->value == "chunk") return;
  if (spec.wrong.Has("uneven") || (!spec.uneven && model.wrong.Has("uneven"))) return;
  bool divides = true;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const DimensionCut& cut = tensor.partition.cuts[d];
    divides = divides && tensor.shape[d] % (PartsOf(cut, mesh_) * cut.segments) == 0;
  }
  if (divides || !reported_.insert(&spec).second) return;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const DimensionCut& cut = tensor.partition.cuts[d];
    const int64_t parts = PartsOf(cut, mesh_);
    if (tensor.shape[d] % (parts * cut.segments) == 0) continue;
    std::vector<std::string> axes;
    for (const int axis : cut.axes) axes.push_back("`" + mesh_.axes[axis] + "`");
    building_.diagnostics.Error(
        spec.from ? spec.span : SpanOf(*spec.shape[d]),
        fmt::format("mesh {} {} ({}){} {} not divide dimension {} of `{}` ({})",
                    axes.size() == 1 ? "axis" : "axes", fmt::join(axes, " × "), parts,
                    cut.segments == 1 ? "" : fmt::format(" of {} segments", cut.segments),
                    axes.size() == 1 ? "does" : "do", d, tensor.path, tensor.shape[d]),
        fmt::format("use a multiple of {}, leave the dimension whole, or allow "
                    "shorter last shards with `uneven: chunk`",
                    parts * cut.segments));
  }
}

}  // namespace shardinit
