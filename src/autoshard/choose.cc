#include "autoshard/choose.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace shardinit {
namespace {

constexpr size_t kMaxWays = 1 << 16, kMaxStates = 1 << 20;

// An axis may do one of these to a block.
enum class Deed { kNothing, kGather, kSplit, kSplitLast, kRoute };

struct AxisDeeds {
  size_t axis;
  std::vector<Deed> of_matrices;
};

std::vector<AxisDeeds> DeedsOf(const StepModel& model, const StepBlock& block) {
  bool has_experts = false, splits = false, splits_twice = false;
  for (const size_t w : block.weights) {
    const StepWeight& weight = model.weights[w];
    const auto dimensions = std::count_if(weight.split_sends.begin(), weight.split_sends.end(),
                                          [](double sends) { return sends >= 0; });
    has_experts |= weight.experts >= 0 && block.experts > 1;
    splits |= dimensions > 0;
    splits_twice |= dimensions > 1;
  }
  std::vector<AxisDeeds> all;
  for (size_t a = 0; a < model.training.axes.size(); ++a) {
    const StepAxis& axis = model.training.axes[a];
    if (axis.size == 1 || axis.use == AxisUse::kOther) continue;
    const bool shares = axis.use == AxisUse::kComputation;
    AxisDeeds deeds = {a, {Deed::kNothing}};
    if (!shares) deeds.of_matrices.push_back(Deed::kGather);
    if (shares && splits) deeds.of_matrices.push_back(Deed::kSplit);
    if (shares && splits_twice) deeds.of_matrices.push_back(Deed::kSplitLast);
    if ((shares || axis.use == AxisUse::kExperts) && has_experts) {
      deeds.of_matrices.push_back(Deed::kRoute);
    }
    all.push_back(std::move(deeds));
  }
  return all;
}

// Cuts one weight as axes ask for, where it can be cut so.
class WeightCutter {
 public:
  WeightCutter(const StepModel& model, const StepWeight& weight)
      : axes_(model.training.axes), weight_(weight), parts_(weight.shape.size(), 1) {}

  AxisCuts Run(const std::vector<AxisDeeds>& deeds, const std::vector<Deed>& of_matrix,
               const std::vector<bool>& gathers_vector) {
    AxisCuts cuts(axes_.size(), -1);
    std::vector<size_t> gathered;
    int64_t parts = 1;
    for (size_t i = 0; i < deeds.size(); ++i) {
      const size_t a = deeds[i].axis;
      const Deed deed = of_matrix[i];
      const int d = deed == Deed::kRoute       ? weight_.experts
                    : deed == Deed::kSplit     ? SplitDimension(false)
                    : deed == Deed::kSplitLast ? SplitDimension(true)
                                               : -1;
      if (d >= 0) {
        cuts[a] = d;
        parts_[static_cast<size_t>(d)] *= axes_[a].size;
      } else if (weight_.is_matrix() ? deed == Deed::kGather : gathers_vector[i]) {
        gathered.push_back(a);
        parts *= axes_[a].size;
      }
    }
    const int d = parts > 1 ? GatheredDimension(parts) : -1;
    for (const size_t a : gathered) cuts[a] = d;
    return cuts;
  }

 private:
  int SplitDimension(bool last) const {
    int found = -1;
    for (size_t d = 0; d < weight_.split_sends.size(); ++d) {
      if (weight_.split_sends[d] >= 0 && (found < 0 || last)) found = static_cast<int>(d);
    }
    return found;
  }

  // The one that falls into equal parts before others, then one that nothing else cuts and that is
  // no stack, then the largest, and the first. A weight that is too small for all ranks stays
  // whole.
  int GatheredDimension(int64_t parts) const {
    int best = -1;
    std::tuple<bool, bool, bool, int64_t> best_rank;
    for (size_t d = 0; d < weight_.shape.size(); ++d) {
      const int64_t extent = weight_.shape[d];
      if (extent / parts_[d] < parts) continue;
      const bool is_stack = std::count(weight_.batch.begin(), weight_.batch.end(), d) > 0;
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

// True if the axes that were chosen to split or to route really do; otherwise they would cut
// through a head, a unit or an expert.
bool IsDone(const StepModel& model, const StepBlock& block, const std::vector<AxisDeeds>& deeds,
            const std::vector<Deed>& of_matrix, const BlockCuts& cuts) {
  const auto uses = UsesOf(model, block, cuts);
  for (size_t i = 0; i < deeds.size(); ++i) {
    if (of_matrix[i] == Deed::kNothing || of_matrix[i] == Deed::kGather) continue;
    const CutUse meant = of_matrix[i] == Deed::kRoute ? CutUse::kRouted : CutUse::kSplit;
    if (std::none_of(uses.begin(), uses.end(),
                     [&](const auto& of_weight) { return of_weight[deeds[i].axis] == meant; })) {
      return false;
    }
  }
  return true;
}

// One way to cut a block, under some options.
struct Way {
  double seconds, memory;
  size_t strategy;
};

// Those that no other is better than both in seconds and in memory: of least memory first.
template <typename T>
void KeepBest(std::vector<T>* ways) {
  std::stable_sort(ways->begin(), ways->end(), [](const T& a, const T& b) {
    return std::pair(a.memory, a.seconds) < std::pair(b.memory, b.seconds);
  });
  std::vector<T> kept;
  for (const T& way : *ways) {
    if (kept.empty() || way.seconds < kept.back().seconds) kept.push_back(way);
  }
  *ways = std::move(kept);
}

// Chooses one way for each block, so that all together are the fastest that fits.
class Combiner {
 public:
  Combiner(std::vector<std::vector<Way>> blocks, double memory)
      : blocks_(std::move(blocks)), memory_(memory) {}

  double LeastMemory() const {
    double memory = 0;
    for (const auto& ways : blocks_) memory += ways.front().memory;
    return memory;
  }

  // Returns the index of each block's way; none if nothing is faster than `limit`. Sets `gave_up`.
  std::optional<std::vector<size_t>> Run(double limit, bool* gave_up) const {
    const size_t n = blocks_.size();
    std::vector<double> least_memory(n + 1, 0), least_seconds(n + 1, 0);
    for (size_t b = n; b-- > 0;) {
      least_memory[b] = least_memory[b + 1] + blocks_[b].front().memory;
      least_seconds[b] = least_seconds[b + 1] + blocks_[b].back().seconds;
    }
    std::vector<std::vector<State>> states = {{{0, 0, 0, 0}}};
    for (size_t b = 0; b < n; ++b) {
      std::vector<State> all;
      for (size_t s = 0; s < states.back().size(); ++s) {
        const State& state = states.back()[s];
        for (size_t w = 0; w < blocks_[b].size(); ++w) {
          const State after = {state.seconds + blocks_[b][w].seconds,
                               state.memory + blocks_[b][w].memory, s, w};
          if (after.memory + least_memory[b + 1] > memory_) break;
          if (after.seconds + least_seconds[b + 1] < limit) all.push_back(after);
        }
        if (all.size() > kMaxStates) {
          *gave_up = true;
          return {};
        }
      }
      KeepBest(&all);
      if (all.empty()) return {};
      states.push_back(std::move(all));
    }
    std::vector<size_t> found(n);
    size_t at = states.back().size() - 1;
    for (size_t b = n; b-- > 0;) {
      found[b] = states[b + 1][at].way;
      at = states[b + 1][at].before;
    }
    return found;
  }

 private:
  struct State {
    double seconds, memory;
    size_t before, way;
  };

  const std::vector<std::vector<Way>> blocks_;
  const double memory_;
};

}  // namespace

std::vector<BlockCuts> Strategies(const StepModel& model, const StepBlock& block,
                                  const FixedCuts& fixed) {
  const std::vector<AxisDeeds> deeds = DeedsOf(model, block);
  bool has_vectors = false, has_matrices = false;
  for (const size_t w : block.weights) {
    (model.weights[w].is_matrix() ? has_matrices : has_vectors) = true;
  }
  // The digits of a number: of each axis its deed, and then whether vectors are gathered.
  std::vector<size_t> bases;
  for (const AxisDeeds& deed : deeds) bases.push_back(has_matrices ? deed.of_matrices.size() : 1);
  for (const AxisDeeds& deed : deeds) {
    const bool shares = model.training.axes[deed.axis].use == AxisUse::kComputation;
    bases.push_back(has_vectors && !shares ? 2 : 1);
  }
  size_t ways = 1;
  for (const size_t base : bases) {
    ways *= base;
    if (ways > kMaxWays) return {};
  }
  std::set<BlockCuts> seen;
  std::vector<BlockCuts> strategies;
  std::vector<Deed> of_matrix(deeds.size());
  std::vector<bool> gathers_vector(deeds.size());
  for (size_t number = 0; number < ways; ++number) {
    size_t rest = number;
    for (size_t i = 0; i < bases.size(); ++i) {
      const size_t digit = std::exchange(rest, rest / bases[i]) % bases[i];
      if (i < deeds.size()) {
        of_matrix[i] = deeds[i].of_matrices[digit];
      } else {
        gathers_vector[i - deeds.size()] = digit > 0;
      }
    }
    BlockCuts cuts;
    for (const size_t w : block.weights) {
      cuts.push_back(
          fixed[w] ? *fixed[w]
                   : WeightCutter(model, model.weights[w]).Run(deeds, of_matrix, gathers_vector));
    }
    if (IsDone(model, block, deeds, of_matrix, cuts) && seen.insert(cuts).second) {
      strategies.push_back(std::move(cuts));
    }
  }
  return strategies;
}

Choice Choose(const StepModel& model, const FixedCuts& fixed) {
  Choice choice;
  std::vector<std::vector<BlockCuts>> strategies;
  for (const StepBlock& block : model.blocks) {
    strategies.push_back(Strategies(model, block, fixed));
    if (strategies.back().empty()) choice.status = Choice::kTooMany;
  }
  if (choice.status == Choice::kTooMany) return choice;
  double best = std::numeric_limits<double>::infinity(), least_memory = best;
  bool gave_up = false;
  for (const StepOptions& options : kAllStepOptions) {
    std::vector<std::vector<Way>> blocks;
    for (size_t b = 0; b < strategies.size(); ++b) {
      std::vector<Way> ways;
      for (size_t s = 0; s < strategies[b].size(); ++s) {
        const StepCost cost = CostOf(model, model.blocks[b], strategies[b][s], options);
        ways.push_back({cost.seconds(), cost.memory, s});
      }
      KeepBest(&ways);
      blocks.push_back(std::move(ways));
    }
    const double beside = CostBeside(model, options).memory;
    const Combiner combiner(blocks, model.training.memory - beside);
    least_memory = std::min(least_memory, beside + combiner.LeastMemory());
    const auto found = combiner.Run(best, &gave_up);
    if (!found) continue;
    best = 0;
    choice.cuts.assign(model.weights.size(), {});
    for (size_t b = 0; b < blocks.size(); ++b) {
      const Way& way = blocks[b][(*found)[b]];
      best += way.seconds;
      for (size_t i = 0; i < model.blocks[b].weights.size(); ++i) {
        choice.cuts[model.blocks[b].weights[i]] = strategies[b][way.strategy][i];
      }
    }
  }
  choice.status = gave_up               ? Choice::kTooMany
                  : choice.cuts.empty() ? Choice::kTooLittleMemory
                                        : Choice::kFound;
  choice.cost.memory = least_memory;
  if (choice.status == Choice::kFound) choice.cost = CostOf(model, choice.cuts);
  return choice;
}

}  // namespace shardinit
