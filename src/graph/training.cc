#include "graph/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "base/glob.h"
#include "graph/dimensions.h"
#include "graph/sharding.h"
#include "init/fans.h"
#include "sharding/search.h"

namespace shardinit {
namespace {

// Bytes a second that a device sends, one way. NVLink of an H100, and InfiniBand NDR with a port
// for each; ICI and DCN of a chip of TPU v6e.
constexpr double kNvLink = 450e9, kInfiniBand = 50e9, kIci = 100e9, kDcn = 12.5e9;
constexpr int64_t kDevicesOfNode = 8;
constexpr int64_t kDefaultTokens = 8192;
constexpr int64_t kMostTokens = int64_t{1} << 40;

constexpr std::string_view kComputationAxes[] = {"tensor",
                                                 "tensor_parallel",
                                                 "tensor_transpose",
                                                 "tensor_sequence",
                                                 "tp",
                                                 "model",
                                                 "model_parallel",
                                                 "mp",
                                                 "mdl",
                                                 "expert",
                                                 "expert_parallel",
                                                 "experts",
                                                 "ep",
                                                 "etp",
                                                 "autoregressive"};
constexpr std::string_view kPipelineAxes[] = {"pipe", "pipeline", "pp", "stage"};

bool Holds(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

AxisUse UseOf(std::string_view name) {
  if (Holds(kPipelineAxes, name)) return AxisUse::kOther;
  return Holds(kComputationAxes, name) ? AxisUse::kComputation : AxisUse::kBatch;
}

// Of the slowest link along an axis.
double BandwidthOf(const Mesh& mesh, size_t axis) {
  if (!mesh.devices.IsPlain()) {
    const auto& slices = mesh.devices.slices;
    return axis < slices.size() && slices[axis] > 1 ? kDcn : kIci;
  }
  const int64_t reach = mesh.StrideOf(static_cast<int>(axis)) * mesh.shape[axis];
  return reach <= kDevicesOfNode ? kNvLink : kInfiniBand;
}

// `fans` of the modules around each tensor.
using FansOfSpecs =
    std::unordered_map<const TensorSpec*, const std::optional<Located<std::string>>*>;

void CollectFans(const ModuleSpec& module, const std::optional<Located<std::string>>& around,
                 FansOfSpecs* found) {
  const auto& fans = module.fans ? module.fans : around;
  for (const auto& member : module.members) {
    if (const auto* tensor = std::get_if<TensorSpec>(&member.value)) {
      found->emplace(tensor, &fans);
    } else {
      CollectFans(*std::get<std::unique_ptr<ModuleSpec>>(member.value), fans, found);
    }
  }
}

bool SaysExpert(std::string_view name) { return name.find("expert") != name.npos; }

// The path without the number of an expert, of which each token passes some.
std::string WithoutExpert(std::string_view path) {
  std::string without;
  bool of_experts = false;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    const bool is_number = part.find_first_not_of("0123456789") == part.npos;
    without += of_experts && is_number ? "*" : std::string(part);
    without += '.';
    of_experts = SaysExpert(part);
    path.remove_prefix(std::min(part.size() + 1, path.size()));
  }
  return without;
}

class StepBuilder {
 public:
  StepBuilder(const Training& training, const Mesh& mesh, const ModelSpec& spec)
      : mesh_(mesh), building_(spec, unheard_) {
    step_.model.axes = training.axes;
    step_.model.tokens = training.tokens;
    CollectFans(spec.modules, spec.fans, &fans_);
  }

  TrainingStep Build(const WrittenTensors& drawn, bool by_partition) {
    for (size_t i = 0; i < drawn.tensors.size(); ++i) {
      const Tensor& tensor = drawn.tensors[i];
      const size_t w = WeightOf(tensor, *drawn.specs[i], *drawn.places[i], by_partition);
      step_.weights.push_back(w);
      // Of those pinned to some ranks, the mean one holds a part.
      double held = 1;
      for (const Pin& pin : tensor.partition.pins) {
        held *= static_cast<double>(pin.indices.size()) /
                static_cast<double>(mesh_.shape[static_cast<size_t>(pin.axis)]);
      }
      StepWeight& weight = step_.model.weights[w];
      weight.count += held;
      if (!SaysExpert(tensor.path) || experts_[w].insert(WithoutExpert(tensor.path)).second) {
        weight.runs += held;
      }
    }
    for (StepWeight& weight : step_.model.weights) {
      for (size_t d = 0; d < weight.shape.size(); ++d) {
        if (stacks_[&weight - step_.model.weights.data()].count(d) > 0) {
          weight.runs *= static_cast<double>(weight.shape[d]);
        }
      }
    }
    step_.model.logical_axes = static_cast<int>(logical_.size());
    return std::move(step_);
  }

 private:
  size_t WeightOf(const Tensor& tensor, const TensorSpec& spec, const Span& place,
                  bool by_partition) {
    std::vector<size_t>& known = known_[&spec];
    for (const size_t w : known) {
      const Tensor& first = *firsts_[w];
      if (first.shape == tensor.shape && first.dtype == tensor.dtype &&
          (!by_partition || first.partition.cuts == tensor.partition.cuts)) {
        return w;
      }
    }
    known.push_back(firsts_.size());
    firsts_.push_back(&tensor);
    step_.model.weights.push_back({tensor.shape, InfoOf(tensor.dtype).bytes, 0, 0, {}, {}});
    experts_.emplace_back();
    stacks_.emplace_back();
    Describe(tensor, spec, place, &step_.model.weights.back());
    return known.back();
  }

  void Describe(const Tensor& tensor, const TensorSpec& spec, const Span& place,
                StepWeight* weight) {
    const size_t rank = tensor.shape.size();
    weight->logical.assign(rank, -1);
    weight->roles.assign(rank, DimensionRole::kPlain);
    if (!spec.axes || spec.axes->value.size() != rank) return;
    const AxisNames& names = spec.axes->value;
    const FanSource source = SourceOf(tensor, spec, place);
    std::optional<FanAxes> directions = DirectionsOf(source, rank);
    if (directions && !source.axes && IsTable(tensor, spec)) {
      // Tables are [rows, columns] everywhere, and looked up by rows.
      FanSource in_out = source;
      in_out.order = FanOrder::kInOut;
      directions = DirectionsOf(in_out, rank);
    }
    for (size_t d = 0; d < rank; ++d) {
      const bool is_batch = std::count(source.batch.begin(), source.batch.end(), d) > 0;
      const bool of_experts = is_batch && SaysExpert(names[d].value);
      if (is_batch && !of_experts) stacks_.back().insert(d);
      if (names[d].value.empty()) continue;
      const auto is_in = [&](const std::vector<size_t>& list) {
        return std::count(list.begin(), list.end(), d) > 0;
      };
      DimensionRole& role = weight->roles[d];
      if (is_batch) {
        if (of_experts) role = DimensionRole::kExperts;
        continue;
      } else if (!directions) {
        role = DimensionRole::kElementwise;
      } else if (is_in(directions->in)) {
        role = DimensionRole::kContracted;
      } else if (is_in(directions->out)) {
        role = DimensionRole::kProduced;
      } else {
        continue;
      }
      weight->logical[d] =
          logical_.emplace(names[d].value, static_cast<int>(logical_.size())).first->second;
    }
  }

  FanSource SourceOf(const Tensor& tensor, const TensorSpec& spec, const Span& place) {
    static const std::optional<Located<std::string>> kNone;
    const auto fans = fans_.find(&spec);
    const Leaf leaf = {tensor.path, spec, place, fans == fans_.end() ? kNone : *fans->second,
                       nullptr,     {}};
    return BindFans(leaf, tensor.shape, nullptr, unheard_).value_or(FanSource{});
  }

  static bool IsTable(const Tensor& tensor, const TensorSpec& spec) {
    constexpr std::string_view kWord = "embed";
    return tensor.path.find(kWord) != tensor.path.npos ||
           (spec.init && spec.init->name.value.starts_with(kWord));
  }

  const Mesh& mesh_;
  Diagnostics unheard_;  // Mistakes were reported before.
  Building building_;
  FansOfSpecs fans_;
  TrainingStep step_;
  std::map<std::string, int> logical_;
  std::unordered_map<const TensorSpec*, std::vector<size_t>> known_;
  std::vector<const Tensor*> firsts_;  // Of each weight.
  std::vector<std::set<std::string>> experts_;
  std::vector<std::set<size_t>> stacks_;  // Dimensions of layers and the like.
};

}  // namespace

Training BindTraining(Building& building, const Mesh& mesh) {
  const ModelSpec& spec = building.spec;
  Training training;
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    training.axes.push_back({mesh.shape[a], UseOf(mesh.axes[a]), BandwidthOf(mesh, a)});
  }
  std::vector<int> said;
  const auto use = [&](const std::optional<AxisList>& list, AxisUse as) {
    if (!list) return;
    for (const auto& name : list->value) {
      const int axis = mesh.Find(name.value);
      if (axis < 0) {
        if (MayLack(spec.mesh, spec.wrong.Has("mesh"))) continue;
        ReportUnknown("mesh axis", name, mesh.axes, building.diagnostics);
      } else if (std::count(said.begin(), said.end(), axis) > 0) {
        building.diagnostics.Error(name.span,
                                   fmt::format("`training` names mesh axis `{}` twice", name.value),
                                   "it divides either the batch or the computation");
      } else {
        said.push_back(axis);
        training.axes[static_cast<size_t>(axis)].use = as;
      }
    }
  };
  use(spec.training.batch, AxisUse::kBatch);
  use(spec.training.computation, AxisUse::kComputation);
  for (const auto& named : spec.bandwidth) {
    if (named.name.value.empty() || !named.value) continue;
    const int axis = mesh.Find(named.name.value);
    const auto value = EvaluateNumber(*named.value, building.names, building.diagnostics);
    if (axis < 0) {
      if (MayLack(spec.mesh, spec.wrong.Has("mesh"))) continue;
      ReportUnknown("mesh axis", named.name, mesh.axes, building.diagnostics);
    } else if (value && !(*value >= 1)) {
      building.diagnostics.Error(
          SpanOf(*named.value),
          fmt::format("the bandwidth of `{}` is {} bytes a second", named.name.value, *value),
          "it is at least 1; such as 50e9");
    } else if (value) {
      training.axes[static_cast<size_t>(axis)].bandwidth = *value;
    }
  }
  training.tokens = static_cast<double>(kDefaultTokens);
  const auto integer = [&](const ExprPtr& expr, int64_t most, std::string_view what) {
    return expr ? EvaluateInteger(*expr, building.names, 1, most, what, building.diagnostics)
                : std::nullopt;
  };
  if (const auto tokens = integer(spec.training.tokens, kMostTokens, "`tokens`")) {
    training.tokens = static_cast<double>(*tokens);
  }
  if (const auto memory =
          integer(spec.training.memory_per_rank, int64_t{1} << 62, "`memory_per_rank`")) {
    training.memory_per_rank = static_cast<double>(*memory);
  }
  return training;
}

TrainingStep StepOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                    bool by_partition, const ModelSpec& spec) {
  return StepBuilder(training, mesh, spec).Build(drawn, by_partition);
}

namespace {

// Of each weight.
std::vector<AxisCuts> CutsOf(const WrittenTensors& drawn, const TrainingStep& step,
                             const Mesh& mesh) {
  std::vector<AxisCuts> cuts(step.model.weights.size());
  for (size_t i = 0; i < drawn.tensors.size(); ++i) {
    cuts[step.weights[i]] = CutsOf(drawn.tensors[i].partition, mesh);
  }
  return cuts;
}

}  // namespace

void ExplainAlternatives(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                         const ModelSpec& spec, Explanation* notes) {
  const auto found =
      std::find_if(drawn.tensors.begin(), drawn.tensors.end(),
                   [&](const Tensor& tensor) { return GlobMatches(notes->pattern, tensor.path); });
  if (found == drawn.tensors.end()) return;
  const TrainingStep step = StepOf(drawn, training, mesh, true, spec);
  const size_t weight = step.weights[static_cast<size_t>(found - drawn.tensors.begin())];
  const StepWeight& of = step.model.weights[weight];
  std::vector<AxisCuts> cuts = CutsOf(drawn, step, mesh);
  std::vector<AxisCuts> ways = Candidates(step.model, of);
  if (std::find(ways.begin(), ways.end(), cuts[weight]) == ways.end()) {
    ways.push_back(cuts[weight]);
  }
  std::vector<std::pair<StepCost, PartitionSpec>> all;
  for (const AxisCuts& way : ways) {
    cuts[weight] = way;
    all.emplace_back(CostOf(step.model, cuts), PartitionOf(way, of.shape.size(), step.model));
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.padding, a.first.seconds) <
           std::pair(b.first.padding, b.first.seconds);
  });
  for (auto& [cost, partition] : all) {
    notes->alternatives.push_back(
        {std::move(partition), cost.seconds, cost.padding, cost.rank_bytes});
  }
}

StepCost CostOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                const ModelSpec& spec) {
  const TrainingStep step = StepOf(drawn, training, mesh, true, spec);
  return CostOf(step.model, CutsOf(drawn, step, mesh));
}

}  // namespace shardinit
