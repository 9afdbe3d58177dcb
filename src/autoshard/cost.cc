#include "autoshard/cost.h"

#include <algorithm>

#include "base/checked_math.h"

namespace shardinit {
namespace {

constexpr double kMomentBytes = 8, kMasterBytes = 4;  // Adam's, for each element
constexpr int64_t kMasterSize = 4;  // weights with fewer bytes per element have an f32 copy

// Returns the bytes that each of n ranks sends in an all-gather or a reduce-scatter of `bytes`.
double Exchange(double bytes, int64_t n) {
  return bytes * static_cast<double>(n - 1) / static_cast<double>(n);
}

// Returns the number of parts into which sequence parallelism cuts activations between blocks.
double SequenceParts(const StepModel& model, const StepOptions& options) {
  double parts = 1;
  for (const StepAxis& axis : model.training.axes) {
    if (options.sequence_parallel && axis.use == AxisUse::kComputation) {
      parts *= static_cast<double>(axis.size);
    }
  }
  return parts;
}

// The cost of one weight, sharded in one way, on the ranks of a stage that hold `held` of it.
class WeightCost {
 public:
  WeightCost(const StepModel& model, const StepWeight& weight, const AxisPlacements& placements,
             const std::vector<AxisStrategy>& uses, const StepOptions& options, double held)
      : model_(model),
        weight_(weight),
        placements_(placements),
        uses_(uses),
        options_(options),
        held_(held) {
    cost_.bytes.resize(placements.size());
  }

  StepCost Run() {
    const double shard = Shard();
    const double gathered = SendWeights(shard);
    if (weight_.is_matrix()) {
      SendActivations();
      Compute();
    }
    // The weights of one layer, with their gradients, are whole at the same time.
    const double in_flight = held_ > 0 ? 2 * (gathered - shard) / weight_.layers : 0;
    const double state = model_.training.optimizer_bytes.value_or(
        kMomentBytes + (weight_.element_bytes < kMasterSize ? kMasterBytes : 0));
    cost_.memory += held_ * (2 * shard + shard / e() * state) + in_flight;
    for (size_t a = 0; a < placements_.size(); ++a) {
      cost_.communication += cost_.bytes[a] / axis(a).bandwidth;
    }
    return std::move(cost_);
  }

 private:
  const StepAxis& axis(size_t a) const { return model_.training.axes[a]; }
  bool IsComputation(size_t a) const { return axis(a).use == AxisUse::kComputation; }
  double e() const { return static_cast<double>(weight_.element_bytes); }
  double MatrixCount() const {
    return weight_.count * (weight_.is_list ? static_cast<double>(weight_.shape[0]) : 1);
  }
  double tokens() const { return model_.training.tokens; }
  // How often a step's tokens pass one of these weights; passes() also counts its experts.
  double runs() const { return held_ * weight_.layers; }
  double passes() const { return runs() * weight_.share; }

  // Returns the product of the sizes of the axes with this use for which `holds` returns true.
  template <typename F>
  double Parts(AxisStrategy use, F holds) const {
    double parts = 1;
    for (size_t a = 0; a < placements_.size(); ++a) {
      if (uses_[a] == use && holds(a)) parts *= static_cast<double>(axis(a).size);
    }
    return parts;
  }
  double Parts(AxisStrategy use) const {
    return Parts(use, [](size_t) { return true; });
  }
  // Returns the bytes of the largest shard.
  double Shard() {
    double shard = e(), whole = e(), padded = e();
    for (size_t d = 0; d < weight_.shape.size(); ++d) {
      int64_t parts = 1;
      for (size_t a = 0; a < placements_.size(); ++a) {
        if (placements_[a].dimension == static_cast<int>(d)) parts *= axis(a).size;
      }
      const auto part = static_cast<double>(CeilDiv(weight_.shape[d], parts));
      shard *= part;
      whole *= static_cast<double>(weight_.shape[d]);
      padded *= part * static_cast<double>(parts);
    }
    cost_.padding = weight_.count * (padded - whole);
    return shard;
  }

  // Gathers over one axis after another, batch axes first, in both passes. Gradients are sent back
  // the same way. Returns the bytes of the gathered weight.
  double SendWeights(double shard) {
    double gathered = shard;
    for (const bool of_computation : {false, true}) {
      for (size_t a = 0; a < placements_.size(); ++a) {
        if (uses_[a] != AxisStrategy::kGathered || IsComputation(a) != of_computation) continue;
        gathered *= static_cast<double>(axis(a).size);
        if (of_computation && weight_.is_matrix()) cost_.sharded_otherwise = MatrixCount();
        // Ranks with the same tokens have the same gradients and do not send them.
        const double times = HasOtherTokens(a) ? 3 : 2;
        cost_.bytes[a] += times * held_ * Exchange(gathered, axis(a).size);
      }
    }
    for (size_t a = 0; a < placements_.size(); ++a) {
      if (uses_[a] != AxisStrategy::kWhole || axis(a).use == AxisUse::kStages ||
          !HasOtherTokens(a)) {
        continue;
      }
      cost_.bytes[a] += 2 * held_ * Exchange(shard, axis(a).size);
    }
    return gathered;
  }

  bool HasOtherTokens(size_t a) const {
    return !IsComputation(a) || (options_.sequence_parallel && !weight_.is_matrix());
  }

  void SendActivations() {
    // With recompute, the forward pass of a layer runs twice.
    const double again = options_.recompute && weight_.is_in_layer ? 1.5 : 1;
    const double sharing = Parts(AxisStrategy::kRouted, [&](size_t a) { return IsComputation(a); });
    for (size_t a = 0; a < placements_.size(); ++a) {
      const int64_t n = axis(a).size;
      if (uses_[a] == AxisStrategy::kSplit) {
        const double sent = weight_.split_sends[static_cast<size_t>(placements_[a].dimension)];
        cost_.bytes[a] += again * Exchange(tokens() * passes() * sent * e(), n);
      } else if (uses_[a] == AxisStrategy::kRouted) {
        const double sent = tokens() / sharing * passes() * weight_.route_sends;
        cost_.bytes[a] += again * Exchange(sent * e(), n);
      }
      // is_rejoined: the ranks have the same tokens before and after the weight, but different ones
      // here. is_joined: the reverse.
      const bool is_rejoined = IsComputation(a) && uses_[a] == AxisStrategy::kRouted &&
                               !options_.sequence_parallel && weight_.route_sends > 0;
      const bool is_joined =
          IsComputation(a) && options_.sequence_parallel &&
          (uses_[a] == AxisStrategy::kWhole || uses_[a] == AxisStrategy::kGathered);
      if (is_rejoined) {
        cost_.bytes[a] += again * Exchange(tokens() * runs() * weight_.route_sends * e(), n);
      } else if (is_joined) {
        const double width = 2 * weight_.inputs + weight_.outputs;
        cost_.bytes[a] += again * Exchange(tokens() * runs() * width * e(), n);
      }
    }
  }

  // Adds the computation, and the activations kept for the backward pass: inputs and outputs.
  void Compute() {
    const double split = Parts(AxisStrategy::kSplit);
    const double sharing = Parts(AxisStrategy::kRouted, [&](size_t a) { return IsComputation(a); });
    const bool runs_twice = options_.recompute && weight_.is_in_layer;
    cost_.computation = (runs_twice ? 8 : 6) * tokens() * passes() * weight_.operations /
                        (split * sharing) / model_.training.flops;
    const auto shards_any = [&](const std::vector<size_t>& dimensions) {
      return Parts(AxisStrategy::kSplit, [&](size_t a) {
        return std::ranges::count(dimensions, placements_[a].dimension) > 0;
      });
    };
    // Sequence parallelism shards the activations that no axis splits.
    const double of_in = shards_any(weight_.in), of_out = shards_any(weight_.out);
    const double in = weight_.inputs / (of_in > 1 ? of_in : SequenceParts(model_, options_));
    const double out = weight_.outputs / (of_out > 1 ? of_out : SequenceParts(model_, options_));
    const double kept = runs_twice && held_ > 0 ? weight_.share : passes();
    cost_.memory += tokens() / sharing * kept * (in + out + weight_.logits / of_in) * e();
  }

  const StepModel& model_;
  const StepWeight& weight_;
  const AxisPlacements& placements_;
  const std::vector<AxisStrategy>& uses_;
  const StepOptions& options_;
  const double held_;
  StepCost cost_;
};

// Decides the use of each axis for a whole block. An axis must split or route all of the weights
// concerned, or none.
class BlockUses {
 public:
  BlockUses(const StepModel& model, const StepBlock& block,
            const std::vector<AxisPlacements>& placements)
      : model_(model),
        block_(block),
        placements_(placements),
        units_(block.units),
        experts_(block.experts) {}

  std::vector<std::vector<AxisStrategy>> Run() {
    const auto& axes = model_.training.axes;
    uses_.assign(placements_.size(), std::vector<AxisStrategy>(axes.size(), AxisStrategy::kWhole));
    for (size_t a = 0; a < axes.size(); ++a) {
      for (size_t i = 0; i < uses_.size(); ++i) {
        if (placements_[i][a].dimension >= 0) uses_[i][a] = AxisStrategy::kGathered;
      }
      const int64_t n = axes[a].size;
      if (n == 1) continue;
      const bool shares = axes[a].use == AxisUse::kComputation;
      if (shares && units_ % n == 0 && RecordIfAll(a, AxisStrategy::kSplit)) {
        units_ /= n;
      } else if ((shares || axes[a].use == AxisUse::kExperts) && experts_ % n == 0 &&
                 RecordIfAll(a, AxisStrategy::kRouted)) {
        experts_ /= n;
      }
    }
    return std::move(uses_);
  }

 private:
  const StepWeight& weight(size_t i) const { return model_.weights[block_.weights[i]]; }
  bool AppliesTo(AxisStrategy use, size_t i) const {
    return use == AxisStrategy::kSplit ? weight(i).MaySplit() : weight(i).experts >= 0;
  }

  // If all weights concerned allow this use, records it and returns true.
  bool RecordIfAll(size_t a, AxisStrategy use) {
    bool any = false;
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (!AppliesTo(use, i)) continue;
      any = true;
      if (use == AxisStrategy::kSplit ? !Splits(a, i)
                                      : placements_[i][a].dimension != weight(i).experts) {
        return false;
      }
    }
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (AppliesTo(use, i)) uses_[i][a] = use;
    }
    return any;
  }

  bool Splits(size_t a, size_t i) const {
    const auto& [dimension, segments] = placements_[i][a];
    if (dimension < 0) return false;
    const auto d = static_cast<size_t>(dimension);
    int64_t parts = segments * model_.training.axes[a].size;
    for (size_t b = 0; b < a; ++b) {
      if (uses_[i][b] == AxisStrategy::kSplit && placements_[i][b].dimension == dimension) {
        parts *= model_.training.axes[b].size;
      }
    }
    return weight(i).MaySplit(d, segments) && weight(i).shape[d] % parts == 0;
  }

  const StepModel& model_;
  const StepBlock& block_;
  const std::vector<AxisPlacements>& placements_;
  int64_t units_, experts_;
  std::vector<std::vector<AxisStrategy>> uses_;
};

}  // namespace

void StepCost::Add(const StepCost& other) {
  communication += other.communication;
  computation += other.computation;
  memory += other.memory;
  padding += other.padding;
  sharded_otherwise += other.sharded_otherwise;
  bytes.resize(std::max(bytes.size(), other.bytes.size()));
  for (size_t a = 0; a < other.bytes.size(); ++a) bytes[a] += other.bytes[a];
}

bool StepCost::IsBetter(const StepCost& other, double memory_limit) const {
  const bool fits = memory <= memory_limit, other_fits = other.memory <= memory_limit;
  if (fits != other_fits) return fits;
  return fits ? seconds() < other.seconds() : memory < other.memory;
}

AxisPlacements PlacementsOf(const PartitionSpec& partition, const StepModel& model,
                            const StepWeight& weight) {
  AxisPlacements placements(model.training.axes.size());
  for (size_t d = 0; d < partition.dimensions.size(); ++d) {
    const DimensionPartition& by = partition.dimensions[d];
    int64_t segments = by.segments;
    for (size_t i = 0; i < by.axes.size(); ++i) {
      if (i < by.nested.size() && by.nested[i] > 0) segments = by.nested[i];
      const auto a = static_cast<size_t>(by.axes[i]);
      if (model.training.axes[a].size == 1) continue;
      placements[a] = {static_cast<int>(d + (weight.is_list ? 1 : 0)), segments};
    }
  }
  for (const size_t a : weight.pinned) {
    if (weight.is_list) placements[a] = 0;
  }
  return placements;
}

PartitionSpec PartitionOf(const AxisPlacements& placements, const std::vector<AxisStrategy>& uses,
                          const StepModel& model, const StepWeight& weight, int64_t expert) {
  const size_t first = weight.is_list ? 1 : 0;
  PartitionSpec partition(weight.shape.size() - first);
  std::vector<size_t> pinning;
  for (const bool is_gathered : {false, true}) {
    for (size_t a = 0; a < placements.size(); ++a) {
      const auto& [dimension, segments] = placements[a];
      if (dimension < 0 || (uses[a] == AxisStrategy::kGathered) != is_gathered) continue;
      if (dimension == 0 && weight.is_list) {
        pinning.push_back(a);
        continue;
      }
      DimensionPartition& by = partition.dimensions[static_cast<size_t>(dimension) - first];
      by.axes.push_back(static_cast<int>(a));
      by.segments = std::max(by.segments, segments);
    }
  }
  // All ranks get the same number of experts, in order.
  int64_t ranks = 1;
  for (const size_t a : pinning) ranks *= model.training.axes[a].size;
  int64_t rank = pinning.empty() ? 0 : expert * ranks / weight.shape[0];
  for (auto a = pinning.rbegin(); a != pinning.rend(); ++a) {
    const int64_t n = model.training.axes[*a].size;
    partition.pins.push_back({static_cast<int>(*a), {rank % n}});
    rank /= n;
  }
  std::ranges::sort(partition.pins);
  return partition;
}

std::vector<std::vector<AxisStrategy>> UsesOf(const StepModel& model, const StepBlock& block,
                                              const std::vector<AxisPlacements>& placements) {
  return BlockUses(model, block, placements).Run();
}

StageCosts CostOf(const StepModel& model, const StepBlock& block,
                  const std::vector<AxisPlacements>& placements, const StepOptions& options) {
  StageCosts costs(model.layers.size());
  const auto uses = UsesOf(model, block, placements);
  for (size_t i = 0; i < block.weights.size(); ++i) {
    const StepWeight& weight = model.weights[block.weights[i]];
    for (size_t s = 0; s < costs.size(); ++s) {
      costs[s].Add(
          WeightCost(model, weight, placements[i], uses[i], options, weight.held[s]).Run());
    }
  }
  return costs;
}

StageCosts CostOutsideBlocks(const StepModel& model, const StepOptions& options) {
  const double parts = SequenceParts(model, options);
  StageCosts costs;
  for (const double layers : model.layers) {
    StepCost& cost = costs.emplace_back();
    cost.options = options;
    cost.bytes.resize(model.training.axes.size());
    if (!options.recompute) continue;
    cost.memory = model.training.tokens * layers * model.width * model.width_bytes / parts;
  }
  return costs;
}

StepCost CostOf(const StepModel& model, const std::vector<AxisPlacements>& placements) {
  std::optional<StepCost> best;
  for (const StepOptions& options : kAllStepOptions) {
    StageCosts costs = CostOutsideBlocks(model, options);
    for (const StepBlock& block : model.blocks) {
      std::vector<AxisPlacements> of_block;
      for (const size_t w : block.weights) of_block.push_back(placements[w]);
      const StageCosts more = CostOf(model, block, of_block, options);
      for (size_t s = 0; s < costs.size(); ++s) costs[s].Add(more[s]);
    }
    double memory = 0;
    size_t slowest = 0;
    for (size_t s = 0; s < costs.size(); ++s) {
      memory = std::max(memory, costs[s].memory);
      if (costs[s].seconds() > costs[slowest].seconds()) slowest = s;
    }
    StepCost cost = std::move(costs[slowest]);
    cost.memory = memory;
    if (!best || cost.IsBetter(*best, model.training.memory)) best = std::move(cost);
  }
  return *best;
}

}  // namespace shardinit
