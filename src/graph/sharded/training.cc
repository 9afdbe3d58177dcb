#include "graph/sharded/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "autoshard/choose.h"
#include "base/table.h"
#include "init/fans.h"

namespace shardinit {
namespace {

// One-way bandwidth of a device in bytes per second. GPUs: NVLink of an H100, and InfiniBand NDR
// with one port for each device. TPUs: ICI and DCN of a v6e chip.
constexpr double kNvLink = 450e9, kInfiniBand = 50e9, kIci = 100e9, kDcn = 12.5e9;
constexpr int64_t kDevicesOfNode = 8;
constexpr int64_t kDefaultTokens = 8192;
// 40 % of the nominal bf16 rate of both devices.
constexpr int64_t kDefaultFlops = 400'000'000'000'000;
constexpr int64_t kMemoryOfH100 = 80'000'000'000, kMemoryOfV6e = 32'000'000'000;
constexpr int64_t kMostOfAnything = int64_t{1} << 60;

constexpr std::string_view kComputationAxes[] = {"tensor",
                                                 "tensor_parallel",
                                                 "tensor_transpose",
                                                 "tensor_sequence",
                                                 "tp",
                                                 "model",
                                                 "model_parallel",
                                                 "mp",
                                                 "mdl",
                                                 "autoregressive",
                                                 "etp"};
constexpr std::string_view kExpertAxes[] = {"expert", "expert_parallel", "experts", "ep"};
constexpr std::string_view kPipelineAxes[] = {"pipe", "pipeline", "pp", "stage"};

AxisUse UseOf(std::string_view name) {
  if (Contains(kPipelineAxes, name)) return AxisUse::kStages;
  if (Contains(kExpertAxes, name)) return AxisUse::kExperts;
  return Contains(kComputationAxes, name) ? AxisUse::kComputation : AxisUse::kBatch;
}

// Returns the bandwidth of the slowest link along an axis.
double BandwidthOf(const Mesh& mesh, size_t axis) {
  if (!mesh.devices.IsPlain()) {
    const auto& slices = mesh.devices.slices;
    return axis < slices.size() && slices[axis] > 1 ? kDcn : kIci;
  }
  const int64_t reach = mesh.StrideOf(static_cast<int>(axis)) * mesh.shape[axis];
  return reach <= kDevicesOfNode ? kNvLink : kInfiniBand;
}

// Turns the tensors of a spec into the weights of a training step.
class StepBuilder {
 public:
  StepBuilder(const WrittenTensors& drawn, const Training& training, const Mesh& mesh)
      : drawn_(drawn), mesh_(mesh) {
    step_.model.training = training;
  }

  TrainingStep Build(bool by_partition) {
    for (const Tensor& tensor : drawn_.tensors) FindStages(tensor);
    size_t stages = 1;
    for (const size_t a : stage_axes_) stages *= static_cast<size_t>(mesh_.shape[a]);
    step_.weights.reserve(drawn_.tensors.size());
    for (size_t i = 0; i < drawn_.tensors.size(); ++i) {
      step_.weights.push_back(
          static_cast<uint32_t>(WeightOf(drawn_.tensors[i], *drawn_.specs[i], by_partition)));
    }
    Recognize(
        [&](const auto& visit) {
          for (size_t i = 0; i < drawn_.tensors.size(); ++i) {
            const Tensor& tensor = drawn_.tensors[i];
            visit({tensor.path(), step_.weights[i], StagesOf(tensor, stages)});
          }
        },
        stages, &step_.model);
    return std::move(step_);
  }

 private:
  // An axis has stages if it pins a tensor outside experts. Pins of experts do not count: other
  // experts may be on other ranks.
  void FindStages(const Tensor& tensor) {
    for (const Pin& pin : tensor.partition().pins) {
      const auto a = static_cast<size_t>(pin.axis);
      AxisUse& use = step_.model.training.axes[a].use;
      if (ExpertOf(tensor.path()) < 0) use = AxisUse::kStages;
      if (use == AxisUse::kStages) stage_axes_.insert(a);
    }
  }

  // Returns the stages whose ranks hold the tensor; empty: all.
  std::vector<size_t> StagesOf(const Tensor& tensor, size_t all) const {
    if (tensor.partition().pins.empty()) return {};
    std::vector<size_t> stages = {0};
    size_t stride = 1;
    for (const size_t a : stage_axes_) {
      const auto extent = static_cast<size_t>(mesh_.shape[a]);
      const auto pin = std::ranges::find_if(
          tensor.partition().pins, [a](const Pin& p) { return p.axis == static_cast<int>(a); });
      const bool is_pinned = pin != tensor.partition().pins.end();
      std::vector<size_t> further;
      for (size_t i = 0; i < (is_pinned ? pin->indices.size() : extent); ++i) {
        const size_t index = is_pinned ? static_cast<size_t>(pin->indices[i]) : i;
        for (const size_t stage : stages) further.push_back(stage + index * stride);
      }
      stages = std::move(further);
      stride *= extent;
    }
    if (stages.size() == all) stages.clear();
    return stages;
  }

  std::vector<size_t> PinnedOf(const Tensor& tensor) const {
    std::vector<size_t> pinned;
    for (const Pin& pin : tensor.partition().pins) {
      const auto a = static_cast<size_t>(pin.axis);
      if (stage_axes_.count(a) == 0 && pin.indices.size() == 1) pinned.push_back(a);
    }
    return pinned;
  }

  size_t WeightOf(const Tensor& tensor, const TensorSpec& spec, bool by_partition) {
    std::vector<size_t>& known = known_[{&spec, tensor.shape()}];
    const std::vector<size_t> pinned = PinnedOf(tensor);
    for (const size_t w : known) {
      const Tensor& first = *firsts_[w];
      if (first.dtype() == tensor.dtype() && step_.model.weights[w].pinned == pinned &&
          (!by_partition || first.partition().dimensions == tensor.partition().dimensions)) {
        return w;
      }
    }
    known.push_back(firsts_.size());
    firsts_.push_back(&tensor);
    step_.model.weights.push_back(Describe(tensor, spec));
    step_.model.weights.back().pinned = pinned;
    return known.back();
  }

  StepWeight Describe(const Tensor& tensor, const TensorSpec& spec) const {
    const size_t rank = tensor.shape().size();
    StepWeight weight;
    weight.shape = tensor.shape();
    weight.element_bytes = InfoOf(tensor.dtype()).bytes;
    weight.names.assign(rank, DimensionName::kNone);
    FanSource source = drawn_.fans.at(&spec);
    if (spec.axes && spec.axes->value.size() == rank) {
      for (size_t d = 0; d < rank; ++d) {
        weight.names[d] = DimensionNamed(spec.axes->value[d].value);
        // A router's experts are its output; the router is a plain matrix.
        const bool is_batch = std::ranges::count(source.batch, d) > 0;
        if (weight.names[d] == DimensionName::kExperts && rank > 2 && !is_batch) {
          source.batch.push_back(d);
        }
      }
    }
    weight.batch = source.batch;
    weight.is_table = IsTable(tensor, spec);
    // Embedding tables are always [rows, columns].
    if (weight.is_table && !source.axes) source.order = FanOrder::kInOut;
    if (const auto directions = DirectionsOf(source, rank)) {
      weight.in = directions->in;
      weight.out = directions->out;
    }
    return weight;
  }

  static bool IsTable(const Tensor& tensor, const TensorSpec& spec) {
    constexpr std::string_view kWord = "embed";
    return tensor.path().find(kWord) != tensor.path().npos ||
           (spec.init && spec.init->name.value.starts_with(kWord));
  }

  const WrittenTensors& drawn_;
  const Mesh& mesh_;
  TrainingStep step_;
  std::set<size_t> stage_axes_;
  // The weights of tensors with the same spec and shape. A repeat may produce as many shapes as
  // tensors.
  std::map<std::pair<const TensorSpec*, Shape>, std::vector<size_t>> known_;
  std::vector<const Tensor*> firsts_;  // first tensor of each weight
};

// Returns the number under one of these names in config.json; 0 if not found.
int64_t InConfig(const Building& building, std::initializer_list<std::string_view> names) {
  Diagnostics unheard;
  if (!building.spec.config) return 0;
  for (const auto& member : *building.spec.config) {
    if (!Contains(names, member.name.value)) continue;
    if (const auto* number = std::get_if<int64_t>(&member.value.value)) return *number;
    const auto* expr = std::get_if<ExprPtr>(&member.value.value);
    if (expr == nullptr || *expr == nullptr) continue;
    return EvaluateInteger(**expr, building.names, 1, kMostOfAnything, member.name.value, unheard)
        .value_or(0);
  }
  return 0;
}

class TrainingBinder {
 public:
  TrainingBinder(Building& building, const Mesh& mesh)
      : building_(building), spec_(building.spec), mesh_(mesh) {}

  Training Run() {
    for (size_t a = 0; a < mesh_.axes.size(); ++a) {
      training_.axes.push_back({mesh_.shape[a], UseOf(mesh_.axes[a]), BandwidthOf(mesh_, a)});
    }
    Use(spec_.training.batch, AxisUse::kBatch);
    Use(spec_.training.expert, AxisUse::kExperts);
    Use(spec_.training.computation, AxisUse::kComputation);
    for (const auto& named : spec_.bandwidth) Bandwidth(named);
    Numbers(spec_.training);
    return std::move(training_);
  }

 private:
  // Returns null and reports the name if the mesh does not have it.
  StepAxis* Find(const Located<std::string>& name) {
    const int axis = mesh_.Find(name.value);
    if (axis >= 0) return &training_.axes[static_cast<size_t>(axis)];
    if (!MayLack(spec_.mesh, spec_.wrong.Has("mesh"))) {
      ReportUnknown("mesh axis", name, mesh_.axes, building_.diagnostics);
    }
    return nullptr;
  }

  void Use(const std::optional<AxisList>& list, AxisUse as) {
    if (!list) return;
    for (const auto& name : list->value) {
      StepAxis* axis = Find(name);
      if (axis == nullptr) continue;
      if (!said_.insert(axis).second) {
        building_.diagnostics.Error(
            name.span, fmt::format("`training` names mesh axis `{}` twice", name.value),
            "an axis is of one kind: `batch`, `expert` or `computation`");
        continue;
      }
      axis->use = as;
    }
  }

  template <typename T>
  void Bandwidth(const T& named) {
    if (named.name.value.empty() || !named.value) return;
    StepAxis* axis = Find(named.name);
    const auto value = EvaluateNumber(*named.value, building_.names, building_.diagnostics);
    if (axis == nullptr || !value) return;
    if (!(*value >= 1)) {
      building_.diagnostics.Error(
          SpanOf(*named.value),
          fmt::format("the bandwidth of `{}` is {} bytes a second", named.name.value, *value),
          "use at least 1, such as 50e9");
      return;
    }
    axis->bandwidth = *value;
  }

  int64_t Integer(const ExprPtr& expr, int64_t low, std::string_view key, int64_t other) {
    if (expr == nullptr) return other;
    return EvaluateInteger(*expr, building_.names, low, kMostOfAnything, key, building_.diagnostics)
        .value_or(other);
  }

  void Numbers(const TrainingSpec& said) {
    const auto number = [&](const ExprPtr& expr, int64_t low, std::string_view key, int64_t other) {
      return static_cast<double>(Integer(expr, low, key, other));
    };
    training_.tokens = number(said.tokens, 1, "`tokens`", kDefaultTokens);
    training_.flops = number(said.flops, 1, "`flops`", kDefaultFlops);
    training_.says_memory = said.memory_per_rank != nullptr;
    training_.memory =
        kCountedMemory * number(said.memory_per_rank, 1, "`memory_per_rank`",
                                mesh_.devices.IsPlain() ? kMemoryOfH100 : kMemoryOfV6e);
    if (said.optimizer_bytes != nullptr) {
      training_.optimizer_bytes = number(said.optimizer_bytes, 0, "`optimizer_bytes`", 0);
    }
    training_.heads =
        Integer(said.heads, 1, "`heads`",
                InConfig(building_, {"num_attention_heads", "num_heads", "n_head", "n_heads"}));
    const int64_t kv_heads = InConfig(building_, {"num_key_value_heads", "n_kv_heads"});
    training_.kv_heads =
        Integer(said.kv_heads, 1, "`kv_heads`", kv_heads > 0 ? kv_heads : training_.heads);
    training_.experts_per_token =
        Integer(said.experts_per_token, 1, "`experts_per_token`",
                InConfig(building_, {"num_experts_per_tok", "num_experts_per_token", "moe_topk"}));
  }

  Building& building_;
  const ModelSpec& spec_;
  const Mesh& mesh_;
  Training training_;
  std::set<const StepAxis*> said_;
};

}  // namespace

Training BindTraining(Building& building, const Mesh& mesh) {
  return TrainingBinder(building, mesh).Run();
}

TrainingStep StepOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                    bool by_partition) {
  return StepBuilder(drawn, training, mesh).Build(by_partition);
}

namespace {

std::vector<AxisPlacements> PlacementsOf(const WrittenTensors& drawn, const TrainingStep& step) {
  std::vector<AxisPlacements> placements(step.model.weights.size());
  for (size_t i = 0; i < drawn.tensors.size(); ++i) {
    const size_t w = step.weights[i];
    if (placements[w].empty())
      placements[w] = PlacementsOf(drawn.tensors[i].partition(), step.model, step.model.weights[w]);
  }
  return placements;
}

}  // namespace

void NoteAlternatives(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                      Explanation& notes) {
  if (!notes.tensor) return;
  TrainingStep step = StepOf(drawn, training, mesh, true);
  StepModel& model = step.model;
  if (MissingForCost(model)) return;
  const size_t weight = step.weights[*notes.tensor];
  const StepBlock& block = model.blocks[static_cast<size_t>(model.weights[weight].block)];
  std::vector<AxisPlacements> placements = PlacementsOf(drawn, step);
  BlockPlacements chosen;
  for (const size_t w : block.weights) {
    chosen.push_back(placements[w]);
    model.weights[w].pinned.clear();  // a language may have chosen the pins too
  }
  std::vector<BlockPlacements> ways =
      Strategies(model, block, FixedPlacements(model.weights.size()));
  ways.insert(ways.begin(), chosen);
  const auto at =
      static_cast<size_t>(std::ranges::find(block.weights, weight) - block.weights.begin());
  const int64_t expert = ExpertOf(drawn.tensors[*notes.tensor].path());
  std::vector<Explanation::Alternative> all;
  for (const BlockPlacements& way : ways) {
    for (size_t i = 0; i < way.size(); ++i) placements[block.weights[i]] = way[i];
    const StepCost cost = CostOf(model, placements);
    all.push_back(
        {PartitionOf(way[at], UsesOf(model, block, way)[at], model, model.weights[weight], expert),
         cost.seconds(), cost.padding, cost.memory, cost.memory <= training.memory});
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) {
    return std::pair(!a.fits, a.seconds) < std::pair(!b.fits, b.seconds);
  });
  notes.block = block.kind;
  // Note only the best of the ways that shard this tensor alike.
  for (const auto& one : all) {
    const auto& known = notes.alternatives;
    if (std::ranges::none_of(known,
                             [&](const auto& other) { return other.partition == one.partition; })) {
      notes.alternatives.push_back(one);
    }
  }
}

std::optional<StepCost> CostOf(const WrittenTensors& drawn, const Training& training,
                               const Mesh& mesh) {
  const TrainingStep step = StepOf(drawn, training, mesh, true);
  if (MissingForCost(step.model)) return {};
  return CostOf(step.model, PlacementsOf(drawn, step));
}

}  // namespace shardinit
