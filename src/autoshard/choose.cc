#include "autoshard/choose.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace shardinit {
namespace {

constexpr size_t kMaxWays = 1 << 16, kMaxStates = 1 << 20;

// An action of an axis on the matrices of a block.
struct AxisAction {
  AxisUse by;
  AxisStrategy use;
  bool last = false;  // use the last dimension that may be split, not the first
};
constexpr AxisAction kAxisActions[] = {
    {AxisUse::kBatch, AxisStrategy::kWhole},
    {AxisUse::kBatch, AxisStrategy::kGathered},
    {AxisUse::kExperts, AxisStrategy::kWhole},
    {AxisUse::kExperts, AxisStrategy::kGathered},
    {AxisUse::kExperts, AxisStrategy::kRouted},
    {AxisUse::kComputation, AxisStrategy::kWhole},
    {AxisUse::kComputation, AxisStrategy::kSplit},
    {AxisUse::kComputation, AxisStrategy::kSplit, true},
    {AxisUse::kComputation, AxisStrategy::kRouted},
};

// Returns the first or the last dimension that may be split, or -1.
int SplitDimension(const StepWeight& weight, bool last) {
  int found = -1;
  for (size_t d = 0; d < weight.split_sends.size(); ++d) {
    if (weight.split_sends[d] >= 0 && (found < 0 || last)) found = static_cast<int>(d);
  }
  return found;
}

// Returns the dimension that the action shards, or -1 if it shards none or gathers the weight.
int DimensionOf(const AxisAction& action, const StepWeight& weight) {
  if (action.use == AxisStrategy::kRouted) return weight.experts;
  return action.use == AxisStrategy::kSplit ? SplitDimension(weight, action.last) : -1;
}

// Returns whether an action applies to a block; `last` needs a second dimension.
bool AppliesTo(const AxisAction& action, const StepModel& model, const StepBlock& block) {
  if (action.use == AxisStrategy::kWhole || action.use == AxisStrategy::kGathered) return true;
  return std::ranges::any_of(block.weights, [&](size_t w) {
    const StepWeight& weight = model.weights[w];
    const int d = DimensionOf(action, weight);
    return d >= 0 && !(action.last && d == SplitDimension(weight, false));
  });
}

struct AxisActions {
  size_t axis;
  std::vector<const AxisAction*> of_matrices;
};

std::vector<AxisActions> ListActions(const StepModel& model, const StepBlock& block) {
  std::vector<AxisActions> all;
  for (size_t a = 0; a < model.training.axes.size(); ++a) {
    const StepAxis& axis = model.training.axes[a];
    if (axis.size == 1 || axis.use == AxisUse::kStages) continue;
    AxisActions actions = {a, {}};
    for (const AxisAction& action : kAxisActions) {
      if (action.by == axis.use && AppliesTo(action, model, block))
        actions.of_matrices.push_back(&action);
    }
    all.push_back(std::move(actions));
  }
  return all;
}

// Shards one weight by the actions of the axes, where possible.
class WeightSharder {
 public:
  WeightSharder(const StepModel& model, const StepWeight& weight)
      : axes_(model.training.axes), weight_(weight), parts_(weight.shape.size(), 1) {}

  AxisPlacements Run(const std::vector<AxisActions>& actions,
                     const std::vector<const AxisAction*>& of_matrix,
                     const std::vector<bool>& gathers_vector) {
    AxisPlacements placements(axes_.size());
    std::vector<size_t> gathered;
    int64_t parts = 1;
    for (const size_t a : weight_.pinned) {
      if (!weight_.is_list || axes_[a].size == 1) continue;
      placements[a] = weight_.experts;
      parts_[static_cast<size_t>(weight_.experts)] *= axes_[a].size;
    }
    for (size_t i = 0; i < actions.size(); ++i) {
      const size_t a = actions[i].axis;
      if (placements[a].dimension >= 0) continue;
      const AxisAction& action = *of_matrix[i];
      const int d = DimensionOf(action, weight_);
      if (d >= 0) {
        const bool splits = action.use == AxisStrategy::kSplit;
        placements[a] = {d, splits ? weight_.SegmentsOf(static_cast<size_t>(d)) : 1};
        parts_[static_cast<size_t>(d)] *= axes_[a].size;
      } else if (weight_.is_matrix() ? action.use == AxisStrategy::kGathered : gathers_vector[i]) {
        gathered.push_back(a);
        parts *= axes_[a].size;
      }
    }
    const int d = parts > 1 ? GatheredDimension(parts) : -1;
    for (const size_t a : gathered) placements[a] = d;
    return placements;
  }

 private:
  // Prefers, in this order, a dimension with equal parts, a dimension that is not a stack, an
  // otherwise unsharded dimension, the largest and the first. A weight that is too small for all
  // ranks stays whole.
  int GatheredDimension(int64_t parts) const {
    int best = -1;
    std::tuple<bool, bool, bool, int64_t> best_rank;
    for (size_t d = weight_.is_list ? 1 : 0; d < weight_.shape.size(); ++d) {
      const int64_t extent = weight_.shape[d];
      if (extent / parts_[d] < parts) continue;
      const bool is_stack = std::ranges::count(weight_.batch, d) > 0;
      const std::tuple rank = {extent % (parts_[d] * parts) == 0, !is_stack, parts_[d] == 1,
                               extent};
      if (best >= 0 && rank <= best_rank) continue;
      best = static_cast<int>(d);
      best_rank = rank;
    }
    return best;
  }

  const std::vector<StepAxis>& axes_;
  const StepWeight& weight_;
  std::vector<int64_t> parts_;
};

// Returns whether the axes that were chosen to split or to route actually do so. Otherwise they
// would cut through a head, a unit or an expert.
bool IsDone(const StepModel& model, const StepBlock& block, const std::vector<AxisActions>& actions,
            const std::vector<const AxisAction*>& of_matrix, const BlockPlacements& placements) {
  const auto uses = UsesOf(model, block, placements);
  for (size_t i = 0; i < actions.size(); ++i) {
    const AxisStrategy meant = of_matrix[i]->use;
    if (meant == AxisStrategy::kWhole || meant == AxisStrategy::kGathered) continue;
    if (std::ranges::none_of(
            uses, [&](const auto& of_weight) { return of_weight[actions[i].axis] == meant; })) {
      return false;
    }
  }
  return true;
}

// The costs of one or several ways to shard a block: the memory of each stage, then the seconds of
// each stage. In a search for the least memory, the first half is 0, so that memory is not limited,
// and the second half is the memory.
using Costs = std::vector<double>;

Costs CostsOf(const StageCosts& stages, bool memory_alone) {
  Costs costs;
  for (const StepCost& cost : stages) costs.push_back(memory_alone ? 0 : cost.memory);
  for (const StepCost& cost : stages) costs.push_back(memory_alone ? cost.memory : cost.seconds());
  return costs;
}

double MostSeconds(const Costs& costs) {
  return *std::max_element(costs.begin() + std::ssize(costs) / 2, costs.end());
}

Costs Sum(Costs a, const Costs& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// Returns the minimum, or the maximum, of each number over all ways.
template <typename T, typename F>
Costs BoundOf(const std::vector<T>& ways, F choose) {
  Costs bound = ways.front().costs;
  for (const T& way : ways) {
    for (size_t i = 0; i < bound.size(); ++i) bound[i] = choose(bound[i], way.costs[i]);
  }
  return bound;
}

// One way to shard a block, with some options.
struct ShardingWay {
  Costs costs;
  size_t strategy;
};

// Keeps the ways that no other way equals or beats in memory and seconds of all stages, and sorts
// them by memory.
template <typename T>
void KeepBest(std::vector<T>* ways) {
  std::ranges::stable_sort(*ways, [](const T& a, const T& b) { return a.costs < b.costs; });
  std::vector<T> kept;
  for (T& way : *ways) {
    const auto is_no_better = [&](const T& other) {
      return std::equal(way.costs.begin(), way.costs.end(), other.costs.begin(),
                        std::greater_equal<>());
    };
    if (std::none_of(kept.rbegin(), kept.rend(), is_no_better)) kept.push_back(std::move(way));
  }
  *ways = std::move(kept);
}

// Chooses one way for each block, so that their combination is the fastest that fits.
class Combiner {
 public:
  Combiner(std::vector<std::vector<ShardingWay>> blocks, Costs beside, double memory)
      : blocks_(std::move(blocks)), memory_(memory), rest_(blocks_.size() + 1) {
    states_.push_back({{std::move(beside), 0, 0}});
    rest_.back().least = rest_.back().most = Costs(states_[0][0].costs.size());
    for (size_t b = blocks_.size(); b-- > 0;) {
      const auto least = [](double x, double y) { return std::min(x, y); };
      const auto most = [](double x, double y) { return std::max(x, y); };
      rest_[b].least = Sum(BoundOf(blocks_[b], least), rest_[b + 1].least);
      rest_[b].most = Sum(BoundOf(blocks_[b], most), rest_[b + 1].most);
    }
  }

  // Returns, for each block, the index of the chosen way to shard it. Returns nullopt if no choice
  // takes fewer seconds than `*limit`. Sets `*limit` to the seconds of the choice, and `gave_up` if
  // there are too many states.
  std::optional<std::vector<size_t>> Run(double* limit, bool* gave_up) {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      std::vector<State> all;
      for (size_t s = 0; s < states_.back().size(); ++s) {
        for (size_t w = 0; w < blocks_[b].size(); ++w) {
          Costs costs = Sum(states_.back()[s].costs, blocks_[b][w].costs);
          if (!MayFit(costs, rest_[b + 1], *limit)) continue;
          ZeroIrrelevant(rest_[b + 1], &costs);
          all.push_back({std::move(costs), s, w});
        }
        if (all.size() > kMaxStates) {
          *gave_up = true;
          return {};
        }
      }
      KeepBest(&all);
      if (all.empty()) return {};
      states_.push_back(std::move(all));
    }
    return Trace(limit);
  }

 private:
  struct State {
    Costs costs;
    size_t before, way;
  };

  // The minimum and the maximum costs of the remaining blocks.
  struct RemainingCosts {
    Costs least, most;
  };

  bool MayFit(const Costs& costs, const RemainingCosts& rest, double limit) const {
    const size_t stages = costs.size() / 2;
    for (size_t s = 0; s < stages; ++s) {
      const double memory = costs[s] + rest.least[s];
      if (memory > memory_ || costs[stages + s] + rest.least[stages + s] >= limit) return false;
    }
    return true;
  }

  // Zeroes costs that can no longer affect the result: memory that is sure to suffice, and stages
  // that wait for another one. KeepBest() can then drop more ways.
  void ZeroIrrelevant(const RemainingCosts& rest, Costs* costs) const {
    const size_t stages = costs->size() / 2;
    double slowest = 0;
    for (size_t s = stages; s < 2 * stages; ++s) {
      slowest = std::max(slowest, (*costs)[s] + rest.least[s]);
    }
    for (size_t s = 0; s < 2 * stages; ++s) {
      const double most = (*costs)[s] + rest.most[s];
      if (s < stages ? most <= memory_ : most < slowest) (*costs)[s] = 0;
    }
  }

  // Traces the choices back from the fastest state.
  std::vector<size_t> Trace(double* limit) const {
    const auto& last = states_.back();
    const auto best = std::ranges::min_element(last, [](const auto& a, const auto& b) {
      return MostSeconds(a.costs) < MostSeconds(b.costs);
    });
    *limit = MostSeconds(best->costs);
    std::vector<size_t> found(blocks_.size());
    auto at = static_cast<size_t>(best - last.begin());
    for (size_t b = found.size(); b-- > 0;) {
      found[b] = states_[b + 1][at].way;
      at = states_[b + 1][at].before;
    }
    return found;
  }

  const std::vector<std::vector<ShardingWay>> blocks_;
  const double memory_;
  std::vector<RemainingCosts> rest_;        // for each block: the rest from this block on
  std::vector<std::vector<State>> states_;  // before each block, and after the last
};

// Finds the fastest choice that fits, or the choice with the least memory. Returns its seconds or
// its memory.
double Search(const StepModel& model, const std::vector<std::vector<BlockPlacements>>& strategies,
              bool memory_alone, Choice* choice) {
  double best = std::numeric_limits<double>::infinity();
  bool gave_up = false;
  for (const StepOptions& options : kAllStepOptions) {
    std::vector<std::vector<ShardingWay>> blocks;
    for (size_t b = 0; b < strategies.size(); ++b) {
      std::vector<ShardingWay>& ways = blocks.emplace_back();
      for (size_t s = 0; s < strategies[b].size(); ++s) {
        const StageCosts costs = CostOf(model, model.blocks[b], strategies[b][s], options);
        ways.push_back({CostsOf(costs, memory_alone), s});
      }
      KeepBest(&ways);
    }
    Combiner combiner(blocks, CostsOf(CostOutsideBlocks(model, options), memory_alone),
                      model.training.memory);
    const auto found = combiner.Run(&best, &gave_up);
    if (!found) continue;
    choice->placements.assign(model.weights.size(), {});
    for (size_t b = 0; b < blocks.size(); ++b) {
      const BlockPlacements& placements = strategies[b][blocks[b][(*found)[b]].strategy];
      for (size_t i = 0; i < placements.size(); ++i)
        choice->placements[model.blocks[b].weights[i]] = placements[i];
    }
  }
  choice->status = gave_up                      ? Choice::kTooMany
                   : choice->placements.empty() ? Choice::kTooLittleMemory
                                                : Choice::kFound;
  return best;
}

}  // namespace

std::vector<BlockPlacements> Strategies(const StepModel& model, const StepBlock& block,
                                        const FixedPlacements& fixed) {
  const std::vector<AxisActions> actions = ListActions(model, block);
  bool has_vectors = false, has_matrices = false;
  for (const size_t w : block.weights) {
    (model.weights[w].is_matrix() ? has_matrices : has_vectors) = true;
  }
  // Each way is a number with these digits: each axis's action, then whether each axis gathers
  // vectors.
  std::vector<size_t> bases;
  for (const AxisActions& action : actions)
    bases.push_back(has_matrices ? action.of_matrices.size() : 1);
  for (const AxisActions& action : actions) {
    const bool shares = model.training.axes[action.axis].use == AxisUse::kComputation;
    bases.push_back(has_vectors && !shares ? 2 : 1);
  }
  size_t ways = 1;
  for (const size_t base : bases) {
    ways *= base;
    if (ways > kMaxWays) return {};
  }
  std::set<BlockPlacements> seen;
  std::vector<BlockPlacements> strategies;
  std::vector<const AxisAction*> of_matrix(actions.size());
  std::vector<bool> gathers_vector(actions.size());
  for (size_t number = 0; number < ways; ++number) {
    size_t rest = number;
    for (size_t i = 0; i < bases.size(); ++i) {
      const size_t digit = std::exchange(rest, rest / bases[i]) % bases[i];
      if (i < actions.size()) {
        of_matrix[i] = actions[i].of_matrices[digit];
      } else {
        gathers_vector[i - actions.size()] = digit > 0;
      }
    }
    BlockPlacements placements;
    for (const size_t w : block.weights) {
      placements.push_back(
          fixed[w]
              ? *fixed[w]
              : WeightSharder(model, model.weights[w]).Run(actions, of_matrix, gathers_vector));
    }
    if (IsDone(model, block, actions, of_matrix, placements) && seen.insert(placements).second) {
      strategies.push_back(std::move(placements));
    }
  }
  return strategies;
}

Choice Choose(const StepModel& model, const FixedPlacements& fixed) {
  Choice choice;
  std::vector<std::vector<BlockPlacements>> strategies;
  for (const StepBlock& block : model.blocks) {
    strategies.push_back(Strategies(model, block, fixed));
    if (strategies.back().empty()) choice.status = Choice::kTooMany;
  }
  if (choice.status == Choice::kTooMany) return choice;
  Search(model, strategies, false, &choice);
  if (choice.status == Choice::kFound) choice.cost = CostOf(model, choice.placements);
  if (choice.status == Choice::kTooLittleMemory) {
    Choice least;
    choice.cost.memory = Search(model, strategies, true, &least);
  }
  return choice;
}

}  // namespace shardinit
