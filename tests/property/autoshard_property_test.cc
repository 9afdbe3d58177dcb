// Compares the chosen sharding with all combinations of strategies, for small random models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "autoshard/choose.h"
#include "support/step_tensors.h"

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
  Training& training = model.training;
  const int64_t axes = dice.Throw(1, 4);
  for (int64_t a = 0; a < axes; ++a) {
    constexpr AxisUse kUses[] = {AxisUse::kBatch,       AxisUse::kBatch,   AxisUse::kComputation,
                                 AxisUse::kComputation, AxisUse::kExperts, AxisUse::kStages};
    training.axes.push_back(
        {dice.Throw(1, 4), kUses[dice.Throw(0, 5)], static_cast<double>(dice.Throw(1, 20))});
  }
  training.tokens = static_cast<double>(dice.Throw(1, 30));
  training.flops = static_cast<double>(dice.Throw(1, 3000));
  training.memory = 1e12;
  training.heads = 2 * dice.Throw(1, 4);
  training.kv_heads = dice.Throw(0, 1) > 0 ? training.heads : 2;
  training.experts_per_token = dice.Throw(1, 2);
  // Each stage of a pipeline has some of the layers.
  const auto stages = static_cast<size_t>(dice.Throw(0, 1) > 0 ? dice.Throw(2, 3) : 1);
  std::vector<std::string> paths;
  std::vector<StepTensor> tensors;
  const int64_t weights = dice.Throw(1, 6);
  for (int64_t w = 0; w < weights; ++w) {
    StepWeight weight;
    const int64_t rank = dice.Throw(0, 3);
    for (int64_t d = 0; d < rank; ++d) {
      constexpr DimensionName kKnown[] = {DimensionName::kNone, DimensionName::kHeads,
                                          DimensionName::kHidden, DimensionName::kVocabulary};
      weight.names.push_back(d == 0 && rank == 3 ? DimensionName::kExperts
                                                 : kKnown[dice.Throw(0, 3)]);
      weight.shape.push_back(dice.Throw(0, 3) > 0 ? 24 : 2 * dice.Throw(1, 6));
    }
    if (rank == 3) weight.batch = {0};
    if (rank > 1) {
      weight.out = {static_cast<size_t>(rank - 2)};
      weight.in = {static_cast<size_t>(rank - 1)};
      weight.is_table = rank == 2 && dice.Throw(0, 4) == 0;
      if (weight.is_table) std::swap(weight.in, weight.out);
    }
    weight.element_bytes = dice.Throw(1, 4);
    model.weights.push_back(std::move(weight));
    const bool is_expert = rank == 2 && dice.Throw(0, 5) == 0, is_of_layer = dice.Throw(0, 3) > 0;
    for (int64_t layer = 0; layer < (is_of_layer ? dice.Throw(1, 4) : 1); ++layer) {
      std::vector<size_t> held;
      if (stages > 1) held = {static_cast<size_t>(dice.Throw(0, 5)) % stages};
      for (int64_t expert = 0; expert < (is_expert ? 4 : 1); ++expert) {
        paths.push_back(fmt::format("{}{}w{}", is_of_layer ? fmt::format("layers.{}.", layer) : "",
                                    is_expert ? fmt::format("experts.{}.", expert) : "", w));
        tensors.push_back({{}, static_cast<size_t>(w), held});
      }
    }
  }
  for (size_t i = 0; i < paths.size(); ++i) tensors[i].path = paths[i];
  Recognize(Each(tensors), stages, &model);
  return model;
}

// Calls visit(cuts) with every combination of the blocks' strategies.
template <typename F>
void ForEachSharding(const StepModel& model, const std::vector<std::vector<BlockPlacements>>& ways,
                     F visit) {
  std::vector<size_t> digits(ways.size(), 0);
  while (true) {
    std::vector<AxisPlacements> placements(model.weights.size());
    for (size_t b = 0; b < digits.size(); ++b) {
      for (size_t i = 0; i < model.blocks[b].weights.size(); ++i) {
        placements[model.blocks[b].weights[i]] = ways[b][digits[b]][i];
      }
    }
    visit(placements);
    size_t b = 0;
    while (b < digits.size() && ++digits[b] == ways[b].size()) digits[b++] = 0;
    if (b == digits.size()) return;
  }
}

TEST(ChooseProperty, ChoosesTheCheapestSharding) {
  Dice dice(20261123);
  int bound_by_memory = 0, impossible = 0, several = 0, split = 0, routed = 0, with_options = 0,
      with_stages = 0, with_lists = 0;
  for (int round = 0; round < 1600; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    StepModel model = RandomModel(dice);
    FixedPlacements fixed(model.weights.size());
    std::vector<std::vector<BlockPlacements>> ways;
    int64_t combinations = 1;
    for (const StepBlock& block : model.blocks) {
      const auto free = Strategies(model, block, fixed);
      if (dice.Throw(0, 9) == 0) {
        fixed[block.weights[0]] = free[static_cast<size_t>(dice.Throw(0, std::ssize(free) - 1))][0];
      }
      ways.push_back(Strategies(model, block, fixed));
      combinations *= std::ssize(ways.back());
    }
    if (combinations == 0 || combinations > 4'000) continue;

    const Choice free = Choose(model, fixed);
    ASSERT_EQ(free.status, Choice::kFound);
    if (dice.Throw(0, 2) > 0) {
      model.training.memory = free.cost.memory * static_cast<double>(dice.Throw(40, 100)) / 100;
    }
    std::optional<StepCost> least;
    ForEachSharding(model, ways, [&](const std::vector<AxisPlacements>& placements) {
      const StepCost cost = CostOf(model, placements);
      if (!least || cost.IsBetter(*least, model.training.memory)) least = cost;
    });
    const Choice found = Choose(model, fixed);
    if (least->memory > model.training.memory) {
      ++impossible;
      ASSERT_EQ(found.status, Choice::kTooLittleMemory);
      EXPECT_NEAR(found.cost.memory, least->memory, 1e-9 * least->memory);
      continue;
    }
    ASSERT_EQ(found.status, Choice::kFound);
    EXPECT_LE(found.cost.memory, model.training.memory);
    EXPECT_NEAR(found.cost.seconds(), least->seconds(), 1e-9 * least->seconds());
    for (size_t w = 0; w < fixed.size(); ++w) {
      EXPECT_EQ(found.placements[w], fixed[w].value_or(found.placements[w]));
    }
    bound_by_memory += free.cost.memory > model.training.memory;
    several += combinations > 30;
    with_stages += model.layers.size() > 1;
    with_options += found.cost.options != StepOptions{};
    for (const StepBlock& block : model.blocks) {
      std::vector<AxisPlacements> placements;
      for (const size_t w : block.weights) {
        placements.push_back(found.placements[w]);
        with_lists += model.weights[w].is_list;
      }
      for (const auto& of_weight : UsesOf(model, block, placements)) {
        split += std::count(of_weight.begin(), of_weight.end(), AxisStrategy::kSplit) > 0;
        routed += std::count(of_weight.begin(), of_weight.end(), AxisStrategy::kRouted) > 0;
      }
    }
  }
  EXPECT_GT(bound_by_memory, 40);
  EXPECT_GT(impossible, 40);
  EXPECT_GT(several, 60);
  EXPECT_GT(split, 40);
  EXPECT_GT(routed, 10);
  EXPECT_GT(with_options, 10);
  EXPECT_GT(with_stages, 100);
  EXPECT_GT(with_lists, 100);
}

// No strategy divides a head or a hidden unit: ranks that share tokens shard whole heads and whole
// pairs of columns and rows, or nothing.
TEST(StrategiesProperty, StrategiesNeverDivideAHeadOrHiddenUnit) {
  Dice dice(7);
  for (int round = 0; round < 1000; ++round) {
    const StepModel model = RandomModel(dice);
    for (const StepBlock& block : model.blocks) {
      for (const BlockPlacements& placements :
           Strategies(model, block, FixedPlacements(model.weights.size()))) {
        const auto uses = UsesOf(model, block, placements);
        for (size_t i = 0; i < uses.size(); ++i) {
          int64_t parts = 1;
          for (size_t a = 0; a < uses[i].size(); ++a) {
            const StepAxis& axis = model.training.axes[a];
            ASSERT_TRUE(axis.use != AxisUse::kStages || uses[i][a] == AxisStrategy::kWhole);
            if (axis.use != AxisUse::kComputation) continue;
            ASSERT_NE(uses[i][a], AxisStrategy::kGathered) << "round " << round;
            if (uses[i][a] == AxisStrategy::kSplit) parts *= axis.size;
          }
          if (block.kind == "attention") {
            ASSERT_EQ(model.training.heads % parts, 0);
            ASSERT_EQ(model.training.kv_heads % parts, 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardinit
