#include "autoshard/cost.h"

#include <algorithm>

#include "base/checked_math.h"

namespace shardinit {
namespace {

constexpr double kMomentBytes = 8, kMasterBytes = 4;  // Adam's, for each element.
constexpr int64_t kMasterSize = 4;                    // Weights of fewer bytes have a copy in f32.

// The bytes that each of n ranks sends where all gather, or reduce and scatter, `bytes`.
double Exchange(double bytes, int64_t n) {
  return bytes * static_cast<double>(n - 1) / static_cast<double>(n);
}

// One weight, cut in one way.
class WeightCost {
 public:
  WeightCost(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts,
             const std::vector<CutUse>& uses, const StepOptions& options)
      : model_(model), weight_(weight), cuts_(cuts), uses_(uses), options_(options) {
    cost_.bytes.resize(cuts.size());
  }

  StepCost Run() {
    const double shard = Shard();
    const double gathered = SendWeights(shard);
    if (weight_.is_matrix()) {
      SendActivations();
      Compute();
    }
    // Those of one layer are together whole, with their gradients.
    const auto e = static_cast<double>(weight_.element_bytes);
    const double in_flight = 2 * (gathered - shard) / weight_.layers;
    const double state = model_.training.optimizer_bytes.value_or(
        kMomentBytes + (weight_.element_bytes < kMasterSize ? kMasterBytes : 0));
    cost_.memory += weight_.count * (2 * shard + shard / e * state) + in_flight;
    for (size_t a = 0; a < cuts_.size(); ++a) {
      cost_.communication += cost_.bytes[a] / axis(a).bandwidth;
    }
    return std::move(cost_);
  }

 private:
  const StepAxis& axis(size_t a) const { return model_.training.axes[a]; }
  bool IsComputation(size_t a) const { return axis(a).use == AxisUse::kComputation; }
  double e() const { return static_cast<double>(weight_.element_bytes); }
  double tokens() const { return model_.training.tokens; }
  // How often the tokens of a step pass one of all these weights, and with each its experts.
  double runs() const { return weight_.count * weight_.layers; }
  double passes() const { return runs() * weight_.share; }

  // The product of axes that are used in one way and for which `holds`.
  template <typename F>
  double Parts(CutUse use, F holds) const {
    double parts = 1;
    for (size_t a = 0; a < cuts_.size(); ++a) {
      if (uses_[a] == use && holds(a)) parts *= static_cast<double>(axis(a).size);
    }
    return parts;
  }
  double Parts(CutUse use) const {
    return Parts(use, [](size_t) { return true; });
  }
  double SequenceParts() const {
    double parts = 1;
    for (size_t a = 0; a < cuts_.size() && options_.sequence_parallel; ++a) {
      if (IsComputation(a)) parts *= static_cast<double>(axis(a).size);
    }
    return parts;
  }

  // The bytes of the largest shard.
  double Shard() {
    double shard = e(), whole = e(), padded = e();
    for (size_t d = 0; d < weight_.shape.size(); ++d) {
      int64_t parts = 1;
      for (size_t a = 0; a < cuts_.size(); ++a) {
        if (cuts_[a] == static_cast<int>(d)) parts *= axis(a).size;
      }
      const auto part = static_cast<double>(CeilDiv(weight_.shape[d], parts));
      shard *= part;
      whole *= static_cast<double>(weight_.shape[d]);
      padded *= part * static_cast<double>(parts);
    }
    cost_.padding = weight_.count * (padded - whole);
    return shard;
  }

  // Gathers over one axis after the other, those of the batch first: in both passes; gradients go
  // the same way back. Returns the bytes of what is gathered.
  double SendWeights(double shard) {
    double gathered = shard;
    for (const bool of_computation : {false, true}) {
      for (size_t a = 0; a < cuts_.size(); ++a) {
        if (uses_[a] != CutUse::kGathered || IsComputation(a) != of_computation) continue;
        gathered *= static_cast<double>(axis(a).size);
        if (of_computation && weight_.is_matrix()) cost_.cut_otherwise = weight_.count;
        // Where all ranks of an axis have the same tokens, they have the same gradients.
        const double times = HasOtherTokens(a) ? 3 : 2;
        cost_.bytes[a] += times * weight_.count * Exchange(gathered, axis(a).size);
      }
    }
    for (size_t a = 0; a < cuts_.size(); ++a) {
      if (uses_[a] != CutUse::kWhole || axis(a).use == AxisUse::kOther || !HasOtherTokens(a))
        continue;
      cost_.bytes[a] += 2 * weight_.count * Exchange(shard, axis(a).size);
    }
    return gathered;
  }

  bool HasOtherTokens(size_t a) const {
    return !IsComputation(a) || (options_.sequence_parallel && !weight_.is_matrix());
  }

  void SendActivations() {
    // The forward pass of a layer is run once more.
    const double again = options_.recompute && weight_.is_in_layer ? 1.5 : 1;
    const double sharing = Parts(CutUse::kRouted, [&](size_t a) { return IsComputation(a); });
    for (size_t a = 0; a < cuts_.size(); ++a) {
      const int64_t n = axis(a).size;
      if (uses_[a] == CutUse::kSplit) {
        const double sent = weight_.split_sends[static_cast<size_t>(cuts_[a])];
        cost_.bytes[a] += again * Exchange(tokens() * passes() * sent * e(), n);
      } else if (uses_[a] == CutUse::kRouted) {
        const double sent = tokens() / sharing * passes() * weight_.route_sends;
        cost_.bytes[a] += again * Exchange(sent * e(), n);
      }
      // Ranks that share tokens before and behind, and here do not.
      const bool is_rejoined = IsComputation(a) && uses_[a] == CutUse::kRouted &&
                               !options_.sequence_parallel && weight_.route_sends > 0;
      const bool is_joined = IsComputation(a) && options_.sequence_parallel &&
                             (uses_[a] == CutUse::kWhole || uses_[a] == CutUse::kGathered);
      if (is_rejoined) {
        cost_.bytes[a] += again * Exchange(tokens() * runs() * weight_.route_sends * e(), n);
      } else if (is_joined) {
        const double width = 2 * weight_.inputs + weight_.outputs;
        cost_.bytes[a] += again * Exchange(tokens() * runs() * width * e(), n);
      }
    }
  }

  // And what is kept for the backward pass: what goes in, what comes out.
  void Compute() {
    const double split = Parts(CutUse::kSplit);
    const double sharing = Parts(CutUse::kRouted, [&](size_t a) { return IsComputation(a); });
    const bool runs_twice = options_.recompute && weight_.is_in_layer;
    cost_.computation = (runs_twice ? 8 : 6) * tokens() * passes() * weight_.operations /
                        (split * sharing) / model_.training.flops;
    const auto cuts_any = [&](const std::vector<size_t>& dimensions) {
      return Parts(CutUse::kSplit, [&](size_t a) {
        return std::count(dimensions.begin(), dimensions.end(), cuts_[a]) > 0;
      });
    };
    // Sequence parallelism cuts the activations that no axis splits.
    const double of_in = cuts_any(weight_.in), of_out = cuts_any(weight_.out);
    const double in = weight_.inputs / (of_in > 1 ? of_in : SequenceParts());
    const double out = weight_.outputs / (of_out > 1 ? of_out : SequenceParts());
    const double kept = runs_twice ? weight_.share : passes();
    cost_.memory += tokens() / sharing * kept * (in + out + weight_.logits / of_in) * e();
  }

  const StepModel& model_;
  const StepWeight& weight_;
  const AxisCuts& cuts_;
  const std::vector<CutUse>& uses_;
  const StepOptions& options_;
  StepCost cost_;
};

// True if a block has weights for which `concerns` holds, and `is_cut` holds for all of them: an
// axis must not cut some of them and leave the others.
template <typename F, typename G>
bool AllAre(const StepModel& model, const StepBlock& block, F concerns, G is_cut) {
  bool any = false;
  for (size_t i = 0; i < block.weights.size(); ++i) {
    const StepWeight& weight = model.weights[block.weights[i]];
    if (!concerns(weight)) continue;
    if (!is_cut(weight, i)) return false;
    any = true;
  }
  return any;
}

}  // namespace

void StepCost::Add(const StepCost& other) {
  communication += other.communication;
  computation += other.computation;
  memory += other.memory;
  padding += other.padding;
  cut_otherwise += other.cut_otherwise;
  bytes.resize(std::max(bytes.size(), other.bytes.size()));
  for (size_t a = 0; a < other.bytes.size(); ++a) bytes[a] += other.bytes[a];
}

bool StepCost::IsBetter(const StepCost& other, double memory_limit) const {
  const bool fits = memory <= memory_limit, other_fits = other.memory <= memory_limit;
  if (fits != other_fits) return fits;
  return fits ? seconds() < other.seconds() : memory < other.memory;
}

AxisCuts CutsOf(const PartitionSpec& partition, const Mesh& mesh) {
  AxisCuts cuts(mesh.axes.size(), -1);
  for (size_t d = 0; d < partition.cuts.size(); ++d) {
    for (const int axis : partition.cuts[d].axes) {
      if (mesh.shape[static_cast<size_t>(axis)] > 1) {
        cuts[static_cast<size_t>(axis)] = static_cast<int>(d);
      }
    }
  }
  return cuts;
}

PartitionSpec PartitionOf(const AxisCuts& cuts, const std::vector<CutUse>& uses,
                          size_t dimensions) {
  PartitionSpec partition(dimensions);
  for (const bool is_gathered : {false, true}) {
    for (size_t a = 0; a < cuts.size(); ++a) {
      if (cuts[a] < 0 || (uses[a] == CutUse::kGathered) != is_gathered) continue;
      partition.cuts[static_cast<size_t>(cuts[a])].axes.push_back(static_cast<int>(a));
    }
  }
  return partition;
}

std::vector<std::vector<CutUse>> UsesOf(const StepModel& model, const StepBlock& block,
                                        const std::vector<AxisCuts>& cuts) {
  const auto& axes = model.training.axes;
  std::vector<std::vector<CutUse>> uses(block.weights.size(),
                                        std::vector<CutUse>(axes.size(), CutUse::kWhole));
  int64_t units = block.units, experts = block.experts;
  for (size_t a = 0; a < axes.size(); ++a) {
    for (size_t i = 0; i < uses.size(); ++i) {
      if (cuts[i][a] >= 0) uses[i][a] = CutUse::kGathered;
    }
    if (axes[a].size == 1) continue;
    const auto is_routed = [](const StepWeight& weight) { return weight.experts >= 0; };
    const auto mark = [&](auto concerns, CutUse use) {
      for (size_t i = 0; i < uses.size(); ++i) {
        if (concerns(model.weights[block.weights[i]])) uses[i][a] = use;
      }
    };
    const bool shares = axes[a].use == AxisUse::kComputation;
    if (shares && units % axes[a].size == 0 &&
        AllAre(model, block, MaySplit, [&](const StepWeight& weight, size_t i) {
          if (cuts[i][a] < 0) return false;
          const auto d = static_cast<size_t>(cuts[i][a]);
          int64_t parts = axes[a].size;
          for (size_t b = 0; b < a; ++b) {
            if (uses[i][b] == CutUse::kSplit && cuts[i][b] == cuts[i][a]) parts *= axes[b].size;
          }
          return weight.split_sends[d] >= 0 && weight.shape[d] % parts == 0;
        })) {
      units /= axes[a].size;
      mark(MaySplit, CutUse::kSplit);
    } else if ((shares || axes[a].use == AxisUse::kExperts) && experts % axes[a].size == 0 &&
               AllAre(model, block, is_routed, [&](const StepWeight& weight, size_t i) {
                 return cuts[i][a] == weight.experts;
               })) {
      experts /= axes[a].size;
      mark(is_routed, CutUse::kRouted);
    }
  }
  return uses;
}

StepCost CostOf(const StepModel& model, const StepBlock& block, const std::vector<AxisCuts>& cuts,
                const StepOptions& options) {
  StepCost cost;
  const auto uses = UsesOf(model, block, cuts);
  for (size_t i = 0; i < block.weights.size(); ++i) {
    const StepWeight& weight = model.weights[block.weights[i]];
    cost.Add(WeightCost(model, weight, cuts[i], uses[i], options).Run());
  }
  return cost;
}

StepCost CostBeside(const StepModel& model, const StepOptions& options) {
  StepCost cost;
  cost.options = options;
  cost.bytes.resize(model.training.axes.size());
  if (!options.recompute) return cost;
  double parts = 1;
  for (const StepAxis& axis : model.training.axes) {
    if (options.sequence_parallel && axis.use == AxisUse::kComputation) {
      parts *= static_cast<double>(axis.size);
    }
  }
  cost.memory = model.training.tokens * model.layers * model.width * model.width_bytes / parts;
  return cost;
}

StepCost CostOf(const StepModel& model, const std::vector<AxisCuts>& cuts) {
  std::optional<StepCost> best;
  for (const StepOptions& options : kAllStepOptions) {
    StepCost cost = CostBeside(model, options);
    for (const StepBlock& block : model.blocks) {
      std::vector<AxisCuts> of_block;
      for (const size_t w : block.weights) of_block.push_back(cuts[w]);
      cost.Add(CostOf(model, block, of_block, options));
    }
    if (!best || cost.IsBetter(*best, model.training.memory)) best = std::move(cost);
  }
  return *best;
}

}  // namespace shardinit
