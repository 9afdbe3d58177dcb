// The formulas of shardinit-auto(7), by hand, and what may be chosen.
#include <gtest/gtest.h>

#include "sharding/search.h"

namespace shardinit {
namespace {

using Role = DimensionRole;

// fsdp 8 at 10 bytes a second, tensor 4 at 100. Logical axes: 0 embed, 1 mlp.
StepModel TwoAxes() {
  return {{{8, AxisUse::kBatch, 10}, {4, AxisUse::kComputation, 100}}, 5, {}, 2};
}

StepWeight Up() {  // [mlp, embed]
  return {{64, 32}, 2, 1, 1, {1, 0}, {Role::kProduced, Role::kContracted}};
}
StepWeight Down() {  // [embed, mlp]
  return {{32, 64}, 2, 1, 1, {0, 1}, {Role::kProduced, Role::kContracted}};
}

TEST(Cost, WeightsAreGatheredTwiceAndGradientsScattered) {
  const StepModel model = TwoAxes();
  // 3 · 4096 / 4 · 7/8.
  const StepCost cost = CostAlone(model, Up(), {1, 0});
  EXPECT_EQ(cost.bytes, (std::vector<double>{2688, 0}));
  EXPECT_EQ(cost.seconds, 268.8);
  EXPECT_EQ(cost.rank_bytes, 4096 / 32);
  EXPECT_EQ(cost.padding, 0);
  // 3 · 4096 · 7/8 where no other axis cuts.
  EXPECT_EQ(CostAlone(model, Up(), {1, -1}).bytes, (std::vector<double>{10752, 0}));
}

TEST(Cost, GradientsOfWholeWeightsAreAllReduced) {
  // 2 · 4096 / 4 · 7/8.
  EXPECT_EQ(CostAlone(TwoAxes(), Up(), {-1, 0}).bytes, (std::vector<double>{1792, 0}));
}

TEST(Cost, WhatIsGatheredOverOneAxisIsStillCutByTheNext) {
  StepModel model = {{{2, AxisUse::kBatch, 1}, {4, AxisUse::kBatch, 1}}, 5, {}, 0};
  const StepWeight weight = {{64}, 1, 1, 1, {-1}, {Role::kPlain}};
  // 3 · 64/4 · 1/2, then 3 · 64 · 3/4.
  EXPECT_EQ(CostAlone(model, weight, {0, 0}).bytes, (std::vector<double>{24, 144}));
  // A computation axis that cuts what has no name is the last to be gathered over.
  model.axes[0].use = AxisUse::kComputation;
  EXPECT_EQ(CostAlone(model, weight, {0, 0}).bytes, (std::vector<double>{96, 72}));
}

TEST(Cost, ActivationsAreReducedWhereAContractedDimensionIsCut) {
  // In both passes 2 · 5 tokens · 32 · 2 bytes · 3/4.
  EXPECT_EQ(CostAlone(TwoAxes(), Down(), {-1, 1}).bytes[1], 960);
  EXPECT_EQ(CostAlone(TwoAxes(), Down(), {-1, 0}).bytes[1], 0);
}

TEST(Cost, TokensGoToExpertsAndBack) {
  const StepWeight experts = {
      {4, 64, 32}, 2, 1, 1, {-1, 1, 0}, {Role::kExperts, Role::kProduced, Role::kContracted}};
  // 2 · 5 tokens · 32 · 2 bytes · 3/4.
  EXPECT_EQ(CostAlone(TwoAxes(), experts, {-1, 0}).bytes[1], 480);
}

TEST(Cost, PairsOfColumnsAndRowsGatherNothingBetweenThem) {
  StepModel model = TwoAxes();
  model.weights = {Up(), Down()};
  const double pair = CostOf(model, {{1, 0}, {0, 1}}).bytes[1];
  EXPECT_EQ(pair, 960);
  // Where producer and consumer disagree: rows alone have 960, and 2 · 5 · 64 · 2 · 3/4 are
  // scattered along mlp. Of down's embed nobody needs to know.
  EXPECT_EQ(CostOf(model, {{1, -1}, {0, 1}}).bytes[1], 960 + 960);
  // Columns, and columns: mlp is gathered, and embed with 2 · 5 · 32 · 2 · 3/4.
  EXPECT_EQ(CostOf(model, {{1, 0}, {1, 0}}).bytes[1], 960 + 480);
}

TEST(Cost, PaddingIsThatOfEqualShards) {
  const StepWeight weight = {{10, 3}, 2, 7, 1, {-1, -1}, {Role::kPlain, Role::kPlain}};
  // [3, 3] on each of 4: 12 rows.
  const StepCost cost = CostAlone(TwoAxes(), weight, {-1, 0});
  EXPECT_EQ(cost.padding, 7 * 2 * 3 * 2);
  EXPECT_EQ(cost.rank_bytes, 7 * 2 * 9);
}

TEST(Candidates, EachAxisCutsWhatItDivides) {
  const StepModel model = TwoAxes();
  // A dimension of its own for each axis first.
  EXPECT_EQ(Candidates(model, Up()), (std::vector<AxisCuts>{{0, 1}, {1, 0}, {0, 0}, {1, 1}}));
}

TEST(Candidates, WhatIsNotDividedIsWholeOrPadded) {
  const StepModel model = TwoAxes();
  const StepWeight odd = {{12, 3}, 2, 1, 1, {-1, -1}, {Role::kPlain, Role::kPlain}};
  const std::vector<AxisCuts> candidates = Candidates(model, odd);
  ASSERT_EQ(candidates.size(), 5U);
  EXPECT_EQ(candidates[0], (AxisCuts{-1, 0}));
}

TEST(Candidates, VectorsMayStayWhole) {
  const StepWeight norm = {{64}, 2, 1, 1, {-1}, {Role::kPlain}};
  EXPECT_EQ(Candidates(TwoAxes(), norm).size(), 4U);
}

TEST(Search, ChoosesColumnsThenRows) {
  StepModel model = TwoAxes();
  model.weights = {Up(), Down()};
  const SearchResult found = FindSharding(model, {{}, {}}, {});
  EXPECT_EQ(found.cuts, (std::vector<AxisCuts>{{1, 0}, {0, 1}}));
  EXPECT_EQ(found.cost.seconds, 2 * 268.8 + 9.6);
}

TEST(Search, CutsVectorsOnlyForMemory) {
  StepModel model = TwoAxes();
  model.tokens = 500;
  model.weights = {{{64}, 2, 1, 1, {0}, {Role::kElementwise}}};
  EXPECT_EQ(FindSharding(model, {{}}, {}).cuts[0], (AxisCuts{-1, -1}));
  EXPECT_EQ(FindSharding(model, {{}}, 16).cuts[0], (AxisCuts{0, -1}));
  EXPECT_EQ(FindSharding(model, {{}}, 4).cuts[0], (AxisCuts{0, 0}));
  const SearchResult none = FindSharding(model, {{}}, 3);
  EXPECT_EQ(none.status, SearchResult::kTooLittleMemory);
  EXPECT_EQ(none.cost.rank_bytes, 4);
}

TEST(Search, PadsOnlyForMemoryAndThenTheLeast) {
  StepModel model = {{{4, AxisUse::kBatch, 1}}, 5, {}, 0};
  model.weights = {{{9, 6}, 1, 1, 1, {-1, -1}, {Role::kPlain, Role::kPlain}}};
  EXPECT_EQ(FindSharding(model, {{}}, {}).cuts[0], (AxisCuts{-1}));
  const SearchResult found = FindSharding(model, {{}}, 20);  // [9, 2] or [3, 6].
  EXPECT_EQ(found.cuts[0], (AxisCuts{0}));
  EXPECT_EQ(found.cost.padding, 18);
}

}  // namespace
}  // namespace shardinit
