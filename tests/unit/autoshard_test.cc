// Tests the formulas of shardinit-auto(7) by hand, the recognition of blocks, and the choices.
#include <gtest/gtest.h>

#include "autoshard/choose.h"
#include "support/step_tensors.h"

namespace shardinit {
namespace {

using Name = DimensionName;

// Returns a model with 5 tokens; fsdp has 8 ranks at 10 bytes a second, tensor 4 at 100.
StepModel TwoAxes() {
  StepModel model;
  model.training.axes = {{8, AxisUse::kBatch, 10}, {4, AxisUse::kComputation, 100}};
  model.training.tokens = 5;
  model.training.memory = 1e12;
  model.training.flops = 1e30;
  model.training.optimizer_bytes = 0;
  return model;
}

StepWeight Matrix(Shape shape, std::vector<Name> names) {  // [out, in]
  StepWeight weight;
  weight.shape = std::move(shape);
  weight.element_bytes = 2;
  weight.names = std::move(names);
  const size_t rank = weight.shape.size();
  weight.out = {rank - 2};
  weight.in = {rank - 1};
  if (rank > 2) weight.batch = {0};
  return weight;
}

StepWeight Vector(int64_t extent, Name name) {
  StepWeight weight;
  weight.shape = {extent};
  weight.element_bytes = 2;
  weight.names = {name};
  return weight;
}

// Adds a tensor for each weight, in two layers if its path has a star.
void Tensors(const std::vector<std::string>& paths, StepModel* model) {
  std::vector<std::string> all;
  std::vector<size_t> weights;
  for (size_t w = 0; w < paths.size(); ++w) {
    const size_t star = paths[w].find('*');
    for (const char layer : {'0', '1'}) {
      if (star == paths[w].npos && layer == '1') continue;
      all.push_back(paths[w]);
      if (star != paths[w].npos) all.back()[star] = layer;
      weights.push_back(w);
    }
  }
  std::vector<StepTensor> tensors;
  for (size_t i = 0; i < all.size(); ++i) tensors.push_back({all[i], weights[i]});
  Recognize(Each(tensors), 1, model);
}

// Returns matrices [mlp, embed] and [embed, mlp] of 64 and 32, in two layers.
StepModel UpAndDown() {
  StepModel model = TwoAxes();
  model.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}),
                   Matrix({32, 64}, {Name::kNone, Name::kHidden})};
  Tensors({"layers.*.up", "layers.*.down"}, &model);
  return model;
}

TEST(Recognize, ColumnAndRowMatricesFormABlock) {
  const StepModel model = UpAndDown();
  ASSERT_EQ(model.blocks.size(), 1U);
  EXPECT_EQ(model.blocks[0].kind, "mlp");
  EXPECT_EQ(model.weights[0].split_sends, (std::vector<double>{0, -1}));
  EXPECT_EQ(model.weights[1].split_sends, (std::vector<double>{-1, 4 * 32}));
  EXPECT_EQ(model.weights[0].count, 2);
  EXPECT_EQ(model.layers, std::vector<double>{2});
  EXPECT_EQ(model.width, 32);
}

// The first weight has gate and up one after the other, with `hidden` units in all.
StepModel Fused(int64_t hidden) {
  StepModel model = TwoAxes();
  model.weights = {Matrix({hidden, 32}, {Name::kHidden, Name::kNone}),
                   Matrix({32, 64}, {Name::kNone, Name::kHidden})};
  Tensors({"layers.*.gate_up", "layers.*.down"}, &model);
  return model;
}

TEST(Recognize, FusedWeightsAreSplitInSegments) {
  const StepModel model = Fused(128);
  EXPECT_EQ(model.weights[0].fused, (std::vector<int64_t>{2, 1}));
  EXPECT_TRUE(model.weights[0].MaySplit(0, 2));
  EXPECT_FALSE(model.weights[0].MaySplit(0, 1));
  EXPECT_FALSE(model.weights[1].MaySplit(1, 2));
  const auto use = [&](AxisPlacement of_fused, AxisPlacement of_down) {
    return UsesOf(model, model.blocks[0], {{-1, of_fused}, {-1, of_down}})[0][1];
  };
  EXPECT_EQ(use({0, 2}, 1), AxisStrategy::kSplit);
  EXPECT_EQ(use(0, 1), AxisStrategy::kGathered);
  EXPECT_EQ(use({0, 4}, 1), AxisStrategy::kGathered);
  EXPECT_EQ(use({0, 2}, {1, 2}), AxisStrategy::kGathered);
  bool splits = false;
  for (const BlockPlacements& placements : Strategies(model, model.blocks[0], FixedPlacements(2))) {
    if (placements[0][1].dimension < 0) continue;
    splits = true;
    EXPECT_EQ(placements[0][1], AxisPlacement(0, 2));
    EXPECT_EQ(placements[1][1], AxisPlacement(1));
  }
  EXPECT_TRUE(splits);
  // It costs as much as a gate and an up projection in two tensors.
  StepModel two = TwoAxes();
  two.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}),
                 Matrix({64, 32}, {Name::kHidden, Name::kNone}),
                 Matrix({32, 64}, {Name::kNone, Name::kHidden})};
  Tensors({"layers.*.gate", "layers.*.up", "layers.*.down"}, &two);
  const StepCost fused = CostOf(model, {{1, {0, 2}}, {0, 1}});
  EXPECT_EQ(fused.bytes, CostOf(two, {{1, 0}, {1, 0}, {0, 1}}).bytes);
  EXPECT_EQ(fused.sharded_otherwise, 0);
  EXPECT_EQ(CostOf(model, {{1, 0}, {0, 1}}).sharded_otherwise, 4);
}

TEST(Recognize, IndivisibleWeightsAreNotSplit) {
  const StepModel model = Fused(96);
  EXPECT_FALSE(model.weights[0].MaySplit() || model.weights[1].MaySplit());
}

TEST(Recognize, WeightWithoutPartnerIsOther) {
  StepModel model = TwoAxes();
  model.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}), Vector(64, Name::kHidden)};
  Tensors({"up", "bias"}, &model);
  ASSERT_EQ(model.blocks.size(), 2U);
  EXPECT_EQ(model.blocks[0].kind, "other");
  EXPECT_EQ(model.blocks[1].kind, "vectors");
  EXPECT_FALSE(model.weights[0].MaySplit());
}

// The matrices have 8 query heads and 2 key heads of 4 elements.
StepModel Attention(int64_t heads, int64_t kv_heads) {
  StepModel model = TwoAxes();
  model.training.heads = heads;
  model.training.kv_heads = kv_heads;
  model.weights = {Matrix({32, 16}, {Name::kHeads, Name::kNone}),
                   Matrix({8, 16}, {Name::kHeads, Name::kNone}),
                   Matrix({16, 32}, {Name::kNone, Name::kHeads})};
  Tensors({"layers.*.q", "layers.*.k", "layers.*.o"}, &model);
  return model;
}

TEST(Uses, HeadsAreNotDivided) {
  const std::vector<AxisPlacements> placements = {{-1, 0}, {-1, 0}, {-1, 1}};
  // With 4 ranks and 2 key heads, sharding is only for storage.
  const StepModel model = Attention(8, 2);
  EXPECT_EQ(UsesOf(model, model.blocks[0], placements)[0][1], AxisStrategy::kGathered);
  EXPECT_EQ(Strategies(model, model.blocks[0], FixedPlacements(3)).size(), 2U);
  const StepModel four = Attention(8, 4);
  EXPECT_EQ(UsesOf(four, four.blocks[0], placements)[0][1], AxisStrategy::kSplit);
  EXPECT_EQ(Strategies(four, four.blocks[0], FixedPlacements(3)).size(), 4U);
}

TEST(Uses, ABlockIsSplitAsAWhole) {
  const StepModel model = UpAndDown();
  const auto uses = UsesOf(model, model.blocks[0], {{-1, 0}, {-1, -1}});
  EXPECT_EQ(uses[0][1], AxisStrategy::kGathered);
  EXPECT_EQ(uses[1][1], AxisStrategy::kWhole);
}

double Sent(const StepModel& model, const std::vector<AxisPlacements>& placements, size_t axis,
            StepOptions options = {}) {
  return CostOf(model, model.blocks[0], placements, options)[0].bytes[axis];
}

TEST(Cost, WeightsAreGatheredTwiceAndGradientsReduceScattered) {
  const StepModel model = UpAndDown();
  // Two layers of two matrices: 4 · 3 · 4096 · 7/8; a quarter of that if they are split.
  EXPECT_EQ(Sent(model, {{1, -1}, {0, -1}}, 0), 43008);
  EXPECT_EQ(Sent(model, {{1, 0}, {0, 1}}, 0), 43008. / 4);
  // 4 · 2 · 4096 / 4 · 7/8.
  EXPECT_EQ(Sent(model, {{-1, 0}, {-1, 1}}, 0), 7168);
}

TEST(Cost, HybridShardingReducesScatteredGradients) {
  StepModel model = TwoAxes();
  model.training.axes = {{2, AxisUse::kBatch, 1}, {4, AxisUse::kBatch, 1}};
  model.weights = {Vector(64, Name::kNone)};
  Tensors({"norm"}, &model);
  // 2 · 128/4 · 1/2 and 3 · 128 · 3/4.
  EXPECT_EQ(CostOf(model, model.blocks[0], {{-1, 0}}, {})[0].bytes, (std::vector<double>{32, 288}));
  // Gathered over the first axis, then over the second: 3 · 128/4 · 1/2, 3 · 128 · 3/4.
  EXPECT_EQ(CostOf(model, model.blocks[0], {{0, 0}}, {})[0].bytes, (std::vector<double>{48, 288}));
}

TEST(Cost, ColumnsAndRowsNeedOneReduction) {
  const StepModel model = UpAndDown();
  const std::vector<AxisPlacements> split = {{-1, 0}, {-1, 1}};
  // Two layers, in both passes 2 · 5 tokens · 32 · 2 bytes · 3/4.
  EXPECT_EQ(Sent(model, split, 1), 2 * 4 * 5 * 32 * 2 * 0.75);
  EXPECT_EQ(Sent(model, split, 1, {.sequence_parallel = true}), 1920);
  // Recomputation repeats the forward pass.
  EXPECT_EQ(Sent(model, split, 1, {.recompute = true}), 1920 * 1.5);
  // A whole weight on ranks with different parts of the tokens costs (2 in + out), for both.
  EXPECT_EQ(Sent(model, {{-1, -1}, {-1, -1}}, 1), 0);
  EXPECT_EQ(Sent(model, {{-1, -1}, {-1, -1}}, 1, {.sequence_parallel = true}),
            2 * 5 * (2 * 32 + 64 + 2 * 64 + 32) * 2 * 0.75);
}

TEST(Cost, ComputationIsCountedForOneRank) {
  StepModel model = UpAndDown();
  model.training.flops = 10;
  const auto seconds = [&](const std::vector<AxisPlacements>& placements, StepOptions options) {
    return CostOf(model, model.blocks[0], placements, options)[0].computation;
  };
  EXPECT_EQ(seconds({{-1, -1}, {-1, -1}}, {}), 6 * 5 * 4 * 2048 / 10.);
  EXPECT_EQ(seconds({{1, 0}, {0, 1}}, {}), 6 * 5 * 2048 / 10.);
  EXPECT_EQ(seconds({{1, 0}, {0, 1}}, {.recompute = true}), 8 * 5 * 2048 / 10.);
}

TEST(Cost, MemoryIncludesGradientsOptimizerAndActivations) {
  StepModel model = UpAndDown();
  model.training.optimizer_bytes.reset();
  const auto memory = [&](const std::vector<AxisPlacements>& placements, StepOptions options) {
    return CostOf(model, model.blocks[0], placements, options)[0].memory;
  };
  // 2 + 2 bytes, and 12 for Adam; inputs and outputs of four matrices.
  const double weights = 4. * 2048 * 16, activations = 4. * 5 * 96 * 2;
  EXPECT_EQ(memory({{-1, -1}, {-1, -1}}, {}), weights + activations);
  // One layer of both weights is gathered, with gradients.
  EXPECT_EQ(memory({{1, -1}, {0, -1}}, {}), weights / 8 + 2 * 2 * 4096. * 7 / 8 + activations);
  EXPECT_EQ(memory({{-1, 0}, {-1, 1}}, {}), weights / 4 + 4. * 5 * (32 + 16) * 2);
  EXPECT_EQ(memory({{-1, 0}, {-1, 1}}, {.sequence_parallel = true}),
            weights / 4 + 4. * 5 * (8 + 16) * 2);
  EXPECT_EQ(memory({{-1, -1}, {-1, -1}}, {.recompute = true}), weights + activations / 2);
  EXPECT_EQ(CostOutsideBlocks(model, {.recompute = true})[0].memory, 5 * 2 * 32 * 2);
}

StepModel Experts(AxisUse use) {
  StepModel model = TwoAxes();
  model.training.axes[1].use = use;
  model.training.experts_per_token = 2;
  model.weights = {Matrix({4, 128, 32}, {Name::kExperts, Name::kHidden, Name::kNone}),
                   Matrix({4, 32, 64}, {Name::kExperts, Name::kNone, Name::kHidden})};
  Tensors({"layers.*.experts.gate_up", "layers.*.experts.down"}, &model);
  return model;
}

TEST(Cost, TokensAreSentToExpertsAndBack) {
  const StepModel model = Experts(AxisUse::kExperts);
  ASSERT_EQ(model.blocks[0].kind, "experts");
  // Two layers, 2 experts for each of 5 tokens, there and back in both passes.
  EXPECT_EQ(Sent(model, {{-1, 0}, {-1, 0}}, 1), 2 * 2 * 4 * 5 * 32 * 2 * 0.75);
  // If one of the two weights is whole, it is gathered and its gradients are scattered.
  EXPECT_EQ(Sent(model, {{-1, 0}, {-1, -1}}, 1),
            2 * (3 * 4 * 128 * 32 + 2 * 4 * 32 * 64) * 2 * 0.75);
  // Ranks that share tokens send a part each, and gather the results.
  EXPECT_EQ(Sent(Experts(AxisUse::kComputation), {{-1, 0}, {-1, 0}}, 1),
            2 * (2 * 4 / 4 + 4) * 5 * 32 * 2 * 0.75);
}

// Returns the same experts as separate tensors; `pinned` experts are on the ranks of some axes.
StepModel ListOfExperts(AxisUse use, std::vector<size_t> pinned) {
  StepModel model = TwoAxes();
  model.training.axes[1].use = use;
  model.training.experts_per_token = 2;
  model.weights = {Matrix({128, 32}, {Name::kHidden, Name::kNone}),
                   Matrix({32, 64}, {Name::kNone, Name::kHidden})};
  std::vector<std::string> paths;
  std::vector<StepTensor> tensors;
  for (size_t w = 0; w < 2; ++w) {
    model.weights[w].pinned = pinned;
    for (int i = 0; i < 8; ++i) {
      paths.push_back("layers." + std::to_string(i / 4) + ".experts." + std::to_string(i % 4) +
                      (w == 0 ? ".gate_up" : ".down"));
      tensors.push_back({{}, w});
    }
  }
  for (size_t i = 0; i < paths.size(); ++i) tensors[i].path = paths[i];
  Recognize(Each(tensors), 1, &model);
  return model;
}

TEST(Cost, SeparateExpertsCostTheSameAsAStack) {
  for (const AxisUse use : {AxisUse::kBatch, AxisUse::kExperts, AxisUse::kComputation}) {
    const StepModel stack = Experts(use), list = ListOfExperts(use, {});
    ASSERT_EQ(list.blocks[0].kind, "experts");
    EXPECT_EQ(list.blocks[0].experts, 4);
    for (const StepOptions& options : kAllStepOptions) {
      for (const BlockPlacements& placements :
           Strategies(stack, stack.blocks[0], FixedPlacements(2))) {
        const StepCost a = CostOf(stack, stack.blocks[0], placements, options)[0];
        const StepCost b = CostOf(list, list.blocks[0], placements, options)[0];
        EXPECT_EQ(a.bytes, b.bytes);
        EXPECT_EQ(a.memory, b.memory);
        EXPECT_EQ(a.computation, b.computation);
      }
    }
  }
}

TEST(Cost, PinnedExpertsReceiveTokens) {
  const StepModel model = ListOfExperts(AxisUse::kExperts, {1});
  // A tensor [128, 32] is on one of four ranks and is sharded over the other axis.
  PartitionSpec partition(2);
  partition.dimensions[1].axes = {0};
  partition.pins = {{1, {2}}};
  const AxisPlacements placements = PlacementsOf(partition, model, model.weights[0]);
  EXPECT_EQ(placements, (AxisPlacements{2, 0}));
  EXPECT_EQ(Sent(model, {placements, placements}, 1), 2 * 2 * 4 * 5 * 32 * 2 * 0.75);
  EXPECT_EQ(Sent(model, {placements, placements}, 0), 2 * 3 * (128 + 64) * 32 * 2 * 7. / 8);
  // Each expert's tensor gets the choice back.
  const auto uses = UsesOf(model, model.blocks[0], {placements, placements});
  for (const int64_t expert : {0, 1, 2, 3}) {
    partition.pins = {{1, {expert}}};
    EXPECT_EQ(PartitionOf(placements, uses[0], model, model.weights[0], expert), partition);
  }
  // A tensor with a stage stays there.
  for (const BlockPlacements& way : Strategies(model, model.blocks[0], FixedPlacements(2))) {
    EXPECT_EQ(way[0][1], AxisPlacement(0));
  }
}

// The model has three layers of two matrices in two stages, a table first and a small head last.
TEST(Cost, AStepTakesAsLongAsTheSlowestStage) {
  StepModel model = TwoAxes();
  model.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}),
                   Matrix({32, 64}, {Name::kNone, Name::kHidden}),
                   Matrix({512, 32}, {Name::kVocabulary, Name::kNone}),
                   Matrix({16, 32}, {Name::kVocabulary, Name::kNone})};
  model.weights[2].is_table = true;
  std::swap(model.weights[2].in, model.weights[2].out);
  const StepModel before = model;
  const std::vector<StepTensor> tensors = {{"table", 2, {0}},         {"layers.0.up", 0, {0}},
                                           {"layers.0.down", 1, {0}}, {"layers.1.up", 0, {1}},
                                           {"layers.1.down", 1, {1}}, {"layers.2.up", 0, {1}},
                                           {"layers.2.down", 1, {1}}, {"head", 3, {1}}};
  Recognize(Each(tensors), 3, &model);  // The last stage is empty.
  EXPECT_EQ(model.layers, (std::vector<double>{1, 2}));
  EXPECT_EQ(model.weights[0].held, (std::vector<double>{1, 2}));
  EXPECT_EQ(model.weights[2].held, (std::vector<double>{1, 0}));
  // The tensors of each stage are a separate model.
  const std::vector<AxisPlacements> placements = {{1, 0}, {0, 1}, {0, -1}, {1, -1}};
  std::vector<StepCost> alone;
  for (const size_t stage : {0, 1}) {
    std::vector<StepTensor> own;
    for (const StepTensor& tensor : tensors) {
      if (tensor.stages[0] == stage) own.push_back({tensor.path, tensor.weight});
    }
    StepModel of_stage = before;
    Recognize(Each(own), 1, &of_stage);
    StageCosts costs = CostOutsideBlocks(of_stage, {});
    for (const StepBlock& block : of_stage.blocks) {
      std::vector<AxisPlacements> of_block;
      for (const size_t w : block.weights) of_block.push_back(placements[w]);
      costs[0].Add(CostOf(of_stage, block, of_block, {})[0]);
    }
    alone.push_back(costs[0]);
  }
  const StepCost cost = CostOf(model, placements);
  ASSERT_EQ(cost.options, StepOptions{});
  EXPECT_GT(alone[0].memory, alone[1].memory);
  EXPECT_GT(alone[0].seconds(), alone[1].seconds());
  EXPECT_EQ(cost.memory, alone[0].memory);
  EXPECT_EQ(cost.bytes, alone[0].bytes);
  EXPECT_EQ(cost.seconds(), alone[0].seconds());
  // The slowest stage may use less memory than another stage.
  model.training.flops = 100;
  for (StepAxis& axis : model.training.axes) axis.bandwidth = 1e9;
  EXPECT_EQ(CostOf(model, placements).memory, alone[0].memory);
  EXPECT_EQ(CostOf(model, placements).computation, 6 * 5 * (4 * 2048 / 4 + 16 * 32) / 100.);
}

// A stage counts the layers of its own and of shared tensors, each once.
TEST(Cost, LayersAreCountedOnce) {
  StepModel model = TwoAxes();
  model.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}), Vector(32, Name::kNone)};
  const std::vector<StepTensor> tensors = {{"layers.0.norm", 1, {}},  {"layers.1.norm", 1, {}},
                                           {"layers.0.up", 0, {0}},   {"layers.1.up", 0, {1}},
                                           {"layers.2.up", 0, {1}},   {"layers.1.bias", 1, {1}},
                                           {"layers.0.scale", 1, {}}, {"layers.2.bias", 1, {1}}};
  Recognize(Each(tensors), 2, &model);
  EXPECT_EQ(model.layers, std::vector<double>{3});  // The first stage has less of everything.
  model.weights = {Matrix({64, 32}, {Name::kHidden, Name::kNone}), Vector(32, Name::kNone)};
  std::vector<StepTensor> first_alone = tensors;
  first_alone.push_back({"layers.3.up", 0, {0}});
  first_alone.push_back({"layers.4.up", 0, {0}});
  Recognize(Each(first_alone), 2, &model);
  EXPECT_EQ(model.layers, (std::vector<double>{4, 3}));
}

TEST(Strategies, ExpertWeightsShareTheirAxes) {
  const StepModel model = Experts(AxisUse::kExperts);
  const auto ways = Strategies(model, model.blocks[0], FixedPlacements(2));
  // With and without fsdp, experts use no axes, the same axes, or their own axes.
  EXPECT_EQ(ways.size(), 6U);
  for (const BlockPlacements& placements : ways) {
    EXPECT_EQ(UsesOf(model, model.blocks[0], placements)[0],
              UsesOf(model, model.blocks[0], placements)[1]);
  }
}

TEST(Strategies, UnknownWeightsAreNotSplitByRanksThatShareTokens) {
  StepModel model = TwoAxes();
  model.weights = {Matrix({64, 32}, {Name::kNone, Name::kNone}), Vector(64, Name::kNone)};
  Tensors({"layers.*.w", "layers.*.b"}, &model);
  for (const StepBlock& block : model.blocks) {
    const auto ways = Strategies(model, block, FixedPlacements(2));
    EXPECT_EQ(ways, (std::vector<BlockPlacements>{{{-1, -1}}, {{0, -1}}}));
  }
}

TEST(Choose, ChoosesTheCheapestWayToSaveMemory) {
  StepModel model = TwoAxes();
  model.training.optimizer_bytes.reset();
  model.weights = {Vector(64, Name::kNone)};
  Tensors({"norm"}, &model);
  // 16 bytes for each of 64 elements.
  EXPECT_EQ(Choose(model, {{}}).placements[0], (AxisPlacements{-1, -1}));
  model.training.memory = 1024;
  EXPECT_EQ(Choose(model, {{}}).placements[0], (AxisPlacements{-1, -1}));
  model.training.memory = 1023;
  EXPECT_EQ(Choose(model, {{}}).placements[0], (AxisPlacements{0, -1}));
  model.training.memory = 100;
  const Choice none = Choose(model, {{}});
  EXPECT_EQ(none.status, Choice::kTooLittleMemory);
  EXPECT_EQ(none.cost.memory, 128 + 2 * 128 * 7 / 8);
  EXPECT_EQ(Choose(model, {AxisPlacements{-1, 0}}).cost.padding, 0);
}

TEST(Choose, SplitsIfComputationCostsMoreThanSending) {
  StepModel model = UpAndDown();
  model.training.tokens = 5000;
  EXPECT_EQ(Choose(model, FixedPlacements(2)).placements,
            (std::vector<AxisPlacements>{{-1, -1}, {-1, -1}}));
  model.training.flops = 1;
  EXPECT_EQ(Choose(model, FixedPlacements(2)).placements,
            (std::vector<AxisPlacements>{{-1, 0}, {-1, 1}}));
}

TEST(Missing, MissingFactsAreReportedNotGuessed) {
  StepModel model = Experts(AxisUse::kExperts);
  EXPECT_FALSE(MissingForChoice(model));
  model.training.experts_per_token = 0;
  EXPECT_TRUE(MissingForCost(model));
  EXPECT_TRUE(MissingForChoice(Attention(0, 0)));
  EXPECT_FALSE(MissingForCost(Attention(0, 0)));
  StepModel unknown = TwoAxes();
  unknown.weights = {Matrix({64, 32}, {Name::kNone, Name::kNone})};
  Tensors({"w"}, &unknown);
  EXPECT_TRUE(MissingForChoice(unknown));
  unknown.training.axes[1].use = AxisUse::kBatch;
  EXPECT_FALSE(MissingForChoice(unknown));
}

}  // namespace
}  // namespace shardinit
