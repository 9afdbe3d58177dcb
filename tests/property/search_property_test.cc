// The search for a sharding, held against all shardings of small random models.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "sharding/search.h"

namespace shardinit {
namespace {

class Dice {
 public:
  explicit Dice(uint32_t seed) : engine_(seed) {}
  int64_t Throw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937 engine_;
};

StepModel RandomModel(Dice& dice) {
  StepModel model;
  const int64_t axes = dice.Throw(1, 3);
  for (int64_t a = 0; a < axes; ++a) {
    const int64_t use = dice.Throw(0, 8);
    model.axes.push_back({dice.Throw(1, 4),
                          use == 0  ? AxisUse::kOther
                          : use < 5 ? AxisUse::kComputation
                                    : AxisUse::kBatch,
                          static_cast<double>(dice.Throw(1, 20))});
  }
  model.tokens = static_cast<double>(dice.Throw(1, 30));
  model.logical_axes = static_cast<int>(dice.Throw(1, 4));
  const int64_t weights = dice.Throw(1, 5);
  for (int64_t w = 0; w < weights; ++w) {
    StepWeight weight;
    const int64_t dimensions = std::min<int64_t>(dice.Throw(0, 4), 3);
    for (int64_t d = 0; d < dimensions; ++d) {
      weight.shape.push_back(dice.Throw(0, 1) > 0 ? 12 * dice.Throw(1, 2)
                                                  : dice.Throw(1, 3) * dice.Throw(1, 4));
      const bool has_name = dice.Throw(0, 5) > 0;
      weight.logical.push_back(has_name ? static_cast<int>(dice.Throw(0, model.logical_axes - 1))
                                        : -1);
      constexpr DimensionRole kRoles[] = {DimensionRole::kContracted, DimensionRole::kProduced,
                                          DimensionRole::kExperts, DimensionRole::kElementwise};
      weight.roles.push_back(has_name ? kRoles[dimensions == 1 ? 3 : dice.Throw(0, 2)]
                                      : DimensionRole::kPlain);
    }
    weight.element_bytes = dice.Throw(1, 4);
    weight.count = static_cast<double>(dice.Throw(1, 3));
    weight.runs = static_cast<double>(dice.Throw(1, 3));
    model.weights.push_back(std::move(weight));
  }
  return model;
}

// Calls visit(cuts) with every combination of candidates.
template <typename F>
void ForEachSharding(const StepModel& model, const std::vector<std::optional<AxisCuts>>& fixed,
                     F visit) {
  std::vector<std::vector<AxisCuts>> candidates;
  for (size_t w = 0; w < model.weights.size(); ++w) {
    candidates.push_back(fixed[w] ? std::vector<AxisCuts>{*fixed[w]}
                                  : Candidates(model, model.weights[w]));
  }
  std::vector<size_t> digits(candidates.size(), 0);
  while (true) {
    std::vector<AxisCuts> cuts;
    for (size_t w = 0; w < digits.size(); ++w) cuts.push_back(candidates[w][digits[w]]);
    visit(cuts);
    size_t w = 0;
    while (w < digits.size() && ++digits[w] == candidates[w].size()) digits[w++] = 0;
    if (w == digits.size()) return;
  }
}

TEST(SearchProperty, NoShardingIsBelowTheOneFound) {
  Dice dice(20261122);
  int bound_by_memory = 0, impossible = 0, several = 0, padded = 0;
  for (int round = 0; round < 1500; ++round) {
    const StepModel model = RandomModel(dice);
    std::vector<std::optional<AxisCuts>> fixed(model.weights.size());
    for (size_t w = 0; w < fixed.size(); ++w) {
      if (dice.Throw(0, 9) > 0) continue;
      const std::vector<AxisCuts> candidates = Candidates(model, model.weights[w]);
      fixed[w] = candidates[static_cast<size_t>(dice.Throw(0, std::ssize(candidates) - 1))];
    }
    int64_t combinations = 1;
    for (const StepWeight& weight : model.weights) {
      combinations *= std::ssize(Candidates(model, weight));
    }
    if (combinations > 200'000) continue;

    const SearchResult free = FindSharding(model, fixed, {});
    ASSERT_EQ(free.status, SearchResult::kFound);
    std::optional<double> memory;
    if (dice.Throw(0, 2) > 0) {
      memory = free.cost.rank_bytes * static_cast<double>(dice.Throw(60, 100)) / 100;
    }
    double least_bytes = std::numeric_limits<double>::infinity();
    std::optional<StepCost> least;
    ForEachSharding(model, fixed, [&](const std::vector<AxisCuts>& cuts) {
      const StepCost cost = CostOf(model, cuts);
      least_bytes = std::min(least_bytes, cost.rank_bytes);
      if (memory && cost.rank_bytes > *memory) return;
      if (!least || cost.IsBelow(*least)) least = cost;
    });
    const SearchResult found = FindSharding(model, fixed, memory);
    SCOPED_TRACE(fmt::format("round {}", round));
    if (!least) {
      ++impossible;
      ASSERT_EQ(found.status, SearchResult::kTooLittleMemory);
      EXPECT_DOUBLE_EQ(found.cost.rank_bytes, least_bytes);
      continue;
    }
    ASSERT_EQ(found.status, SearchResult::kFound);
    EXPECT_LE(found.cost.rank_bytes, memory.value_or(found.cost.rank_bytes));
    EXPECT_EQ(found.cost.padding, least->padding);
    EXPECT_NEAR(found.cost.seconds, least->seconds, 1e-9 * least->seconds);
    for (size_t w = 0; w < fixed.size(); ++w) {
      EXPECT_EQ(found.cuts[w], fixed[w].value_or(found.cuts[w]));
    }
    bound_by_memory += memory && free.cost.rank_bytes > *memory;
    several += combinations > 50;
    padded += least->padding > 0;
  }
  EXPECT_GT(bound_by_memory, 40);
  EXPECT_GT(impossible, 40);
  EXPECT_GT(several, 80);
  EXPECT_GT(padded, 20);
}

TEST(SearchProperty, TheCostIsTheSumOfWhatEachWeightCostsWithTheBestActivations) {
  // Activations enumerated here are chosen one by one in CostOf.
  Dice dice(7);
  for (int round = 0; round < 300; ++round) {
    const StepModel model = RandomModel(dice);
    std::vector<AxisCuts> cuts;
    for (const StepWeight& weight : model.weights) {
      const std::vector<AxisCuts> candidates = Candidates(model, weight);
      cuts.push_back(candidates[static_cast<size_t>(dice.Throw(0, std::ssize(candidates) - 1))]);
    }
    const size_t axes = model.axes.size(), bits = axes * static_cast<size_t>(model.logical_axes);
    double least = std::numeric_limits<double>::infinity();
    for (size_t state = 0; state < size_t{1} << bits; ++state) {
      double seconds = 0;
      bool is_possible = true;
      std::vector<bool> has_matrix(bits);
      for (size_t w = 0; w < cuts.size(); ++w) {
        const StepWeight& weight = model.weights[w];
        seconds += CostAlone(model, weight, cuts[w]).seconds;
        for (size_t d = 0; d < weight.shape.size(); ++d) {
          if (weight.logical[d] < 0) continue;
          for (size_t a = 0; a < axes; ++a) {
            const size_t bit = static_cast<size_t>(weight.logical[d]) * axes + a;
            has_matrix[bit] = has_matrix[bit] || weight.roles[d] == DimensionRole::kContracted ||
                              weight.roles[d] == DimensionRole::kProduced;
            if (model.axes[a].use != AxisUse::kComputation) continue;
            seconds += Disagreement(model, weight, cuts[w], d, a, state >> bit & 1) /
                       model.axes[a].bandwidth;
          }
        }
      }
      for (size_t bit = 0; bit < bits; ++bit) is_possible &= has_matrix[bit] || !(state >> bit & 1);
      if (is_possible) least = std::min(least, seconds);
    }
    EXPECT_NEAR(CostOf(model, cuts).seconds, least, 1e-9 * least);
  }
}

}  // namespace
}  // namespace shardinit
