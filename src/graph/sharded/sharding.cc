#include "graph/sharded/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "autoshard/step.h"
#include "base/table.h"
#include "graph/languages/languages.h"

namespace shardinit {
namespace {

const AxisNames* AxesOf(const TensorSpec& spec) { return spec.axes ? &spec.axes->value : nullptr; }

TensorToShard MakeTensorToShard(const TensorSpec& spec, const Tensor& tensor) {
  return {tensor.path(),       tensor.shape(),        AxesOf(spec),
          &tensor.partition(), spec.from.has_value(), spec.stage.has_value()};
}

}  // namespace

std::vector<int> BindAxes(const AxisList& list, const Mesh& mesh, std::vector<int>* used,
                          const Building& building) {
  std::vector<int> axes;
  for (const auto& name : list.value) {
    const int axis = mesh.Find(name.value);
    if (axis < 0) {
      if (MayLack(building.spec.mesh, building.spec.wrong.Has("mesh"))) continue;
      ReportUnknown("mesh axis", name, mesh.axes, building.diagnostics);
    } else if (Contains(*used, axis)) {
      building.diagnostics.Error(
          name.span, fmt::format("mesh axis `{}` would shard a tensor twice", name.value),
          "each mesh axis may shard one dimension of a tensor, once");
    } else {
      axes.push_back(axis);
      used->push_back(axis);
    }
  }
  return axes;
}

Sharder::Sharder(Building& building, const Mesh& mesh)
    : building_(building), mesh_(mesh), stack_(ReadLanguages(building, mesh)) {}

void Sharder::Shard(WrittenTensors& written) {
  if (stack_.context != nullptr) {
    stack_.context->lacks_tensors |= !written.IsComplete() || building_.spec.wrong.Has("layouts");
  }
  if (Chooses()) Look(written);
  FormPool forms;
  for (size_t i = 0; i < written.tensors.size(); ++i) {
    if (written.specs[i] == nullptr) continue;
    Tensor& tensor = written.tensors[i];
    const TensorSpec& spec = *written.specs[i];
    if (tensor.partition().dimensions.size() != tensor.shape().size()) {
      tensor.Edit().partition.dimensions.resize(tensor.shape().size());
    }
    if (!building_.diagnostics.HasErrors()) building_.why.Resume(i);
    auto sharding = ShardingOf(spec, MakeTensorToShard(spec, tensor));
    if (sharding && sharding->partition != tensor.partition()) {
      tensor.Edit().partition = std::move(sharding->partition);
    }
    forms.ShareForm(tensor);
    Note(spec, tensor);
    building_.why.End();
    if (CheckFits(spec, *written.places[i], tensor)) {
      if (const auto padding = CheckDivides(spec, tensor)) written.paddings.emplace(i, *padding);
    }
  }
  // Report errors in the axes of tensors without a shape.
  const Shape unknown;
  for (const TensorSpec* spec : written.shapeless) {
    ShardingOf(*spec, {{}, unknown, AxesOf(*spec), nullptr, false, false});
  }
}

void Sharder::Look(WrittenTensors& written) {
  std::vector<const PartitionSpec*> fixed;
  for (size_t i = 0; i < written.tensors.size(); ++i) {
    const TensorSpec* spec = written.specs[i];
    fixed.push_back(spec != nullptr && spec->shard ? &ExplicitOf(*spec) : nullptr);
    if (spec == nullptr || spec->from) continue;  // a view is on the same ranks as its sources
    building_.why.Resume(i);
    SettlePins(*spec, written.tensors[i]);
    building_.why.End();
  }
  for (const auto& language : stack_.languages) language->Look(written, fixed);
}

void Sharder::SettlePins(const TensorSpec& spec, Tensor& tensor) {
  TensorSharding sharding;
  sharding.partition.dimensions.resize(tensor.shape().size());
  sharding.partition.pins = tensor.partition().pins;
  sharding.is_pinned = spec.stage.has_value();
  for (const auto& language : stack_.languages) {
    if (language->Pins()) language->Shard(MakeTensorToShard(spec, tensor), &sharding);
  }
  if (sharding.partition.pins != tensor.partition().pins) {
    tensor.Edit().partition.pins = std::move(sharding.partition.pins);
  }
  // Dimensions are noted when they are sharded.
  building_.why.Note([&](Explanation& notes) {
    notes.rules.clear();
    settled_ = std::exchange(notes.pins, {});
  });
}

void Sharder::Note(const TensorSpec& spec, const Tensor& tensor) {
  building_.why.Note([&](Explanation& notes) {
    // If no `stage` pins the tensor, languages did before one of them chose its shardings.
    if (Chooses() && !spec.from && notes.stage.source == nullptr) notes.pins = std::move(settled_);
    if (spec.shard) {  // takes precedence over languages
      notes.shard = spec.shard->span;
      notes.rules.clear();
      notes.pins.clear();
    }
    for (const DimensionPartition& by : tensor.partition().dimensions) {
      for (const int axis : by.axes) {
        const auto& written = building_.spec.mesh[static_cast<size_t>(axis)];
        if (!written.value) continue;
        notes.mesh.push_back({written.name.value, TextOf(*written.value),
                              fmt::to_string(mesh_.shape[static_cast<size_t>(axis)]),
                              SpanOf(*written.value)});
      }
    }
  });
}

void Sharder::CheckUse() {
  if (building_.spec.wrong.Has("modules")) return;
  for (const auto& language : stack_.languages) language->CheckUse();
}

bool Sharder::Chooses() const {
  return std::ranges::any_of(stack_.languages,
                             [](const auto& language) { return language->Chooses(); });
}

bool Sharder::InheritsSharding(const TensorSpec& spec, const Tensor& tensor) {
  building_.why.End();  // what decides is noted when the tensor is sharded
  const auto sharding = ShardingOf(spec, MakeTensorToShard(spec, tensor));
  return sharding && !sharding->says_sharding;
}

std::optional<TensorSharding> Sharder::ShardingOf(const TensorSpec& spec,
                                                  const TensorToShard& tensor) {
  TensorSharding sharding;
  sharding.partition.dimensions.resize(tensor.shape.size());
  if (tensor.before != nullptr) sharding.partition.pins = tensor.before->pins;
  sharding.is_pinned = tensor.is_view || spec.stage || !sharding.partition.pins.empty();
  bool is_known = true;
  // Run languages even if `shard` takes precedence, so that their errors are reported.
  for (const auto& language : stack_.languages) is_known &= language->Shard(tensor, &sharding);
  if (spec.shard) {
    sharding.partition.dimensions = ExplicitOf(spec).dimensions;
    sharding.partition.dimensions.resize(tensor.shape.size());
    sharding.says_sharding = true;
  } else if (!is_known || spec.wrong.Has("axes") || spec.wrong.Has("shard")) {
    return {};
  }
  if (tensor.is_view && !sharding.says_sharding)
    sharding.partition.dimensions = tensor.before->dimensions;
  return sharding;
}

const PartitionSpec& Sharder::ExplicitOf(const TensorSpec& spec) {
  const auto [it, is_new] = explicit_.try_emplace(&spec);
  // An explanation needs the used variables even if its tensor is not the first of its spec.
  if (is_new || building_.why.is_taking()) {
    it->second.dimensions.clear();
    std::vector<int> used;
    int64_t boxes = 1;
    for (const ShardSpec& written : spec.shard->value) {
      DimensionPartition& by =
          it->second.dimensions.emplace_back(BindAxes(written.axes, mesh_, &used, building_));
      if (written.segments == nullptr) continue;
      const int64_t segments =
          EvaluateInteger(*written.segments, building_.names, 1, kMaxSegments / boxes, "`segments`",
                          building_.diagnostics)
              .value_or(1);
      // A dimension that nothing shards is one box.
      if (PartsOf(by, mesh_) > 1) boxes *= by.segments = segments;
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
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    if (by.segments > tensor.shape()[d]) {
      fits = false;
      report(fmt::format("dimension {} of `{}` ({}) cannot have {} segments", d, tensor.path(),
                         tensor.shape()[d], by.segments),
             "use fewer: each has at least one element");
    }
    for (const Pin& pin : tensor.partition().pins) {
      if (!Contains(by.axes, pin.axis)) continue;
      fits = false;
      const int64_t expert = ExpertOf(tensor.path());
      report(fmt::format("mesh axis `{}` would shard dimension {} of `{}`, whose {} is index {} "
                         "of that axis",
                         mesh_.axes[pin.axis], d, tensor.path(),
                         expert < 0 ? "stage" : fmt::format("expert {}", expert),
                         fmt::join(pin.indices, ", ")),
             "a mesh axis can either shard a tensor or determine which ranks hold it");
    }
  }
  return fits;
}

// The tensor's `uneven` takes precedence, then `uneven` in `sharding`, then the spec's.
const UnevenSpec* Sharder::PolicyOf(const TensorSpec& spec) const {
  if (spec.uneven) return &*spec.uneven;
  if (stack_.uneven) return &*stack_.uneven;
  return building_.spec.uneven ? &*building_.spec.uneven : nullptr;
}

bool Sharder::AllowsUneven(const TensorSpec& spec) const {
  const ModelSpec& model = building_.spec;
  if (spec.wrong.Has("uneven")) return true;  // the policy is unknown
  if (const UnevenSpec* policy = PolicyOf(spec)) return policy->value != "error";
  return model.wrong.Has("uneven") || model.wrong.Has("sharding") ||
         std::ranges::any_of(stack_.languages,
                             [](const auto& language) { return language->AllowsUneven(); });
}

std::optional<Padding> Sharder::CheckDivides(const TensorSpec& spec, const Tensor& tensor) {
  bool divides = true;
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    divides = divides && tensor.shape()[d] % DivisorOf(by, mesh_) == 0;
  }
  const UnevenSpec* policy = PolicyOf(spec);
  if (policy != nullptr && policy->value == "pad" && !spec.wrong.Has("uneven")) {
    const auto [padding, is_new] = paddings_.try_emplace(policy, 0);
    if (is_new && policy->padding != nullptr) {
      padding->second = EvaluateNumber(*policy->padding, building_.names, building_.diagnostics);
    }
    if (divides || !padding->second) return {};
    return Padding{*padding->second, policy->span};
  }
  if (divides || AllowsUneven(spec) || !reported_.insert(&spec).second) return {};
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    const int64_t parts = PartsOf(by, mesh_);
    const int64_t divisor = DivisorOf(by, mesh_), segments = SegmentsOf(by);
    if (tensor.shape()[d] % divisor == 0) continue;
    std::vector<std::string> axes;
    for (const int axis : by.axes) axes.push_back("`" + mesh_.axes[axis] + "`");
    building_.diagnostics.Error(
        spec.from ? spec.span : SpanOf(*spec.shape[d]),
        fmt::format("mesh {} {} ({}){} {} not divide dimension {} of `{}` ({})",
                    axes.size() == 1 ? "axis" : "axes", fmt::join(axes, " × "), parts,
                    segments == 1 ? "" : fmt::format(" of {} segments", segments),
                    axes.size() == 1 ? "does" : "do", d, tensor.path(), tensor.shape()[d]),
        fmt::format("use a multiple of {}, leave the dimension whole, or allow shorter last shards "
                    "with `uneven: chunk`",
                    divisor));
  }
  return {};
}

}  // namespace shardinit
