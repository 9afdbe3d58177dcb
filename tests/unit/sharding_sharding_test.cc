#include "sharding/sharding.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/cases.h"

namespace shardinit {
namespace {

using Extents = std::vector<int64_t>;

int64_t RankOf(const Mesh& mesh, const std::vector<int64_t>& coordinate) {
  int64_t rank = 0;
  for (size_t a = 0; a < coordinate.size(); ++a) rank = rank * mesh.shape[a] + coordinate[a];
  return rank;
}

Box BoxAt(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh,
          const std::vector<int64_t>& coordinate) {
  const std::vector<Box> boxes =
      Sharding(mesh, Replicas::kDedupe, shape, spec).BoxesOn(RankOf(mesh, coordinate));
  EXPECT_LE(boxes.size(), 1u);
  return boxes.empty() ? Box{Shape(shape.size()), Shape(shape.size())} : boxes[0];
}

bool IsFirstHolder(const PartitionSpec& spec, const std::vector<int64_t>& coordinate) {
  const Mesh mesh{std::vector<std::string>(coordinate.size()), Shape(coordinate.size(), 6)};
  const Shape shape(spec.dimensions.size(), 6);
  return Sharding(mesh, Replicas::kDedupe, shape, spec).IsFirstHolder(RankOf(mesh, coordinate));
}

DimensionPartition InSegments(std::vector<int> axes, int64_t segments) {
  DimensionPartition by(std::move(axes));
  by.segments = segments;
  return by;
}

int64_t CountBoxes(const Shape& shape, const PartitionSpec& spec, const Mesh& mesh) {
  return Sharding(mesh, Replicas::kDedupe, shape, spec).CountBoxes();
}

// Returns how `parts` ranks of one axis divide n elements.
Extents Cut(int64_t n, int64_t parts) {
  const Mesh mesh{{"x"}, {parts}};
  Extents extents;
  int64_t end = 0;
  for (int64_t rank = 0; rank < parts; ++rank) {
    const Box box = BoxAt({n}, {{0}}, mesh, {rank});
    EXPECT_TRUE(box.shape[0] == 0 || box.offset[0] == end);
    end += box.shape[0];
    extents.push_back(box.shape[0]);
  }
  EXPECT_EQ(end, n);
  return extents;
}

// Examples of torch.chunk, DTensor's Shard and torch_xla's GetShardShape.
TEST(BoxAt, ShardsByTheCeilingRule) {
  EXPECT_EQ(Cut(12, 4), (Extents{3, 3, 3, 3}));
  EXPECT_EQ(Cut(10, 4), (Extents{3, 3, 3, 1}));
  EXPECT_EQ(Cut(6, 4), (Extents{2, 2, 2, 0}));
  EXPECT_EQ(Cut(5, 4), (Extents{2, 2, 1, 0}));
  EXPECT_EQ(Cut(1, 4), (Extents{1, 0, 0, 0}));
  EXPECT_EQ(Cut(7, 1), (Extents{7}));
}

// The vocabulary of Llama 3 over 512 ranks.
TEST(BoxAt, Shards128256Over512) {
  Extents expected(510, 251);
  expected.push_back(246);
  expected.push_back(0);
  EXPECT_EQ(Cut(128256, 512), expected);
}

TEST(BoxAt, FirstOfSeveralAxesIsTheMajorOne) {
  const Mesh mesh{{"fsdp", "tensor"}, {2, 2}};
  const auto rows = [&](std::vector<int> axes, int64_t rank) {
    const Box box = BoxAt({8}, {axes}, mesh, mesh.CoordinateOf(rank));
    return Extents{box.offset[0], box.offset[0] + box.shape[0] - 1};
  };
  // DTensor's [Shard(0), Shard(0)].
  EXPECT_EQ(rows({0, 1}, 0), (Extents{0, 1}));
  EXPECT_EQ(rows({0, 1}, 1), (Extents{2, 3}));
  EXPECT_EQ(rows({0, 1}, 2), (Extents{4, 5}));
  EXPECT_EQ(rows({0, 1}, 3), (Extents{6, 7}));
  // [_StridedShard(0, split_factor=2), Shard(0)]: FSDP2 after tensor parallelism.
  EXPECT_EQ(rows({1, 0}, 0), (Extents{0, 1}));
  EXPECT_EQ(rows({1, 0}, 1), (Extents{4, 5}));
  EXPECT_EQ(rows({1, 0}, 2), (Extents{2, 3}));
  EXPECT_EQ(rows({1, 0}, 3), (Extents{6, 7}));
}

TEST(BoxAt, ShardsSeveralDimensions) {
  const Mesh mesh{{"x", "y", "z"}, {2, 3, 2}};
  EXPECT_EQ(BoxAt({8, 9, 5}, {{0}, {}, {1}}, mesh, {1, 2, 1}), (Box{{4, 0, 4}, {4, 9, 1}}));
  EXPECT_EQ(BoxAt({8, 9, 5}, {{0}, {}, {1}}, mesh, {0, 1, 0}), (Box{{0, 0, 2}, {4, 9, 2}}));
}

TEST(BoxesOn, LastRanksMayHaveNoBox) {
  const Mesh mesh{{"x"}, {4}};
  const Shape shape = {5, 3};
  const PartitionSpec spec = {{0}, {}};
  const Sharding sharding(mesh, Replicas::kDedupe, shape, spec);
  EXPECT_EQ(sharding.BoxesOn(3), std::vector<Box>());
  EXPECT_EQ(sharding.BoxesOn(2), (std::vector<Box>{{{4, 0}, {1, 3}}}));
}

TEST(BoxAt, EveryRankHoldsAScalar) {
  const Mesh mesh{{"x"}, {4}};
  EXPECT_EQ(BoxAt({}, {}, mesh, {3}), (Box{{}, {}}));
}

TEST(BoxAt, BoxesDoNotOverflowAtTheLimits) {
  const int64_t n = std::numeric_limits<int64_t>::max() / 2;
  const Mesh mesh{{"x"}, {kMaxWorldSize}};
  const Box box = BoxAt({n}, {{0}}, mesh, {kMaxWorldSize - 1});
  EXPECT_EQ(box.offset[0] + box.shape[0], n);
  EXPECT_GT(box.shape[0], 0);
}

TEST(IsFirstHolder, FirstHolderDependsOnUnusedAxes) {
  const PartitionSpec spec = {{2}, {}};
  EXPECT_TRUE(IsFirstHolder(spec, {0, 0, 0}));
  EXPECT_TRUE(IsFirstHolder(spec, {0, 0, 5}));
  EXPECT_FALSE(IsFirstHolder(spec, {0, 1, 0}));
  EXPECT_FALSE(IsFirstHolder(spec, {1, 0, 5}));
  EXPECT_TRUE(IsFirstHolder({}, {0, 0, 0}));
  EXPECT_FALSE(IsFirstHolder({}, {0, 0, 1}));
  EXPECT_TRUE(IsFirstHolder({}, {}));
}

// The example in DTensor's _StridedShard: 9 elements, split_factor 2, over 4 ranks.
TEST(BoxesOn, RanksHoldAPartOfEverySegment) {
  const Mesh mesh{{"x"}, {4}};
  const Shape shape = {9};
  const PartitionSpec spec = {InSegments({0}, 2)};
  const Sharding sharding(mesh, Replicas::kDedupe, shape, spec);
  EXPECT_EQ(sharding.BoxesOn(0), (std::vector<Box>{{{0}, {2}}, {{5}, {1}}}));
  EXPECT_EQ(sharding.BoxesOn(1), (std::vector<Box>{{{2}, {2}}, {{6}, {1}}}));
  EXPECT_EQ(sharding.BoxesOn(2), (std::vector<Box>{{{4}, {1}}, {{7}, {1}}}));
  EXPECT_EQ(sharding.BoxesOn(3), (std::vector<Box>{{{8}, {1}}}));
}

// In Megatron, with 8 rows of gate and 8 of up, rank 1 of 2 has rows 4 to 7 of each.
TEST(BoxesOn, RanksHoldAPartOfGateAndOfUp) {
  const Mesh mesh{{"tensor"}, {2}};
  const Shape shape = {16, 3};
  const PartitionSpec spec = {InSegments({0}, 2), {}};
  EXPECT_EQ(Sharding(mesh, Replicas::kDedupe, shape, spec).BoxesOn(1),
            (std::vector<Box>{{{4, 0}, {4, 3}}, {{12, 0}, {4, 3}}}));
}

TEST(BoxesOn, BoxesAreInRowMajorOrderOfSegments) {
  const Mesh mesh{{"x", "y"}, {2, 2}};
  const Shape shape = {4, 8};
  const PartitionSpec spec = {InSegments({0}, 2), InSegments({1}, 2)};
  EXPECT_EQ(
      Sharding(mesh, Replicas::kDedupe, shape, spec).BoxesOn(1),
      (std::vector<Box>{{{0, 2}, {1, 2}}, {{0, 6}, {1, 2}}, {{2, 2}, {1, 2}}, {{2, 6}, {1, 2}}}));
}

DimensionPartition Nested(std::vector<int> axes, std::vector<int64_t> segments) {
  DimensionPartition by(std::move(axes));
  by.nested = std::move(segments);
  return by;
}

// DTensor's [Shard(0), Shard(0)] divides 10 elements into 5 and 5, and each into 3 and 2.
TEST(BoxesOn, NestedAxesSplitTheRestOfEarlierAxes) {
  const Mesh mesh{{"x", "y"}, {2, 2}};
  const Shape shape = {10};
  const PartitionSpec spec = {Nested({0, 1}, {1, 1})};
  const Sharding sharding(mesh, Replicas::kDedupe, shape, spec);
  const std::vector<Box> boxes = {{{0}, {3}}, {{3}, {2}}, {{5}, {3}}, {{8}, {2}}};
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(sharding.BoxesOn(static_cast<int64_t>(rank)), std::vector<Box>{boxes[rank]});
  }
  EXPECT_EQ(sharding.CountBoxes(), 4);
  EXPECT_EQ(InText(spec, mesh), "[x then y]");
  EXPECT_EQ(DivisorOf(spec.dimensions[0], mesh), 4);
}

// With [Shard(0), _StridedShard(0, split_factor=3)] of 7 elements, rank 2 has the most.
TEST(BoxesOn, NestedSegmentsSplitAnUnevenRest) {
  const Mesh mesh{{"x", "y"}, {2, 2}};
  const Shape shape = {7};
  const PartitionSpec spec = {Nested({0, 1}, {1, 3})};
  const Sharding sharding(mesh, Replicas::kDedupe, shape, spec);
  EXPECT_EQ(sharding.BoxesOn(0), (std::vector<Box>{{{0}, {1}}, {{2}, {1}}}));
  EXPECT_EQ(sharding.BoxesOn(1), (std::vector<Box>{{{1}, {1}}, {{3}, {1}}}));
  EXPECT_EQ(sharding.BoxesOn(2), (std::vector<Box>{{{4}, {3}}}));
  EXPECT_EQ(sharding.BoxesOn(3), std::vector<Box>());
  EXPECT_EQ(sharding.LargestRank(), 2);
  EXPECT_EQ(sharding.LowestRank(), 0);
  EXPECT_EQ(sharding.CountBoxes(), 5);
  EXPECT_EQ(InText(spec, mesh), "[x then y in 3 segments]");
  EXPECT_EQ(DivisorOf(spec.dimensions[0], mesh), 12);
}

TEST(Simplified, SimplifiedNestsOnlyIfNecessary) {
  const Mesh mesh{{"x", "y", "one"}, {2, 2, 1}};
  const auto simple = [&](DimensionPartition by, int64_t extent) {
    return Simplified({std::move(by)}, {extent}, mesh).dimensions[0];
  };
  EXPECT_EQ(simple(Nested({0, 1}, {1, 1}), 8), DimensionPartition({0, 1}));
  EXPECT_EQ(simple(Nested({0, 1}, {1, 1}), 7), DimensionPartition({0, 1}));  // 2, 2, 2, 1.
  EXPECT_EQ(simple(Nested({0, 1}, {1, 1}), 10), Nested({0, 1}, {1, 1}));
  EXPECT_EQ(simple(Nested({0, 2, 1}, {1, 1, 1}), 10), Nested({0, 2, 1}, {1, 1, 0}));
  EXPECT_EQ(simple(Nested({2, 0}, {1, 3}), 12), InSegments({2, 0}, 3));
  EXPECT_EQ(simple(Nested({2, 0}, {5, 3}), 2), InSegments({2, 0}, 2));
  EXPECT_EQ(simple(Nested({0, 1}, {2, 2}), 8), InSegments({0, 1}, 2));
  EXPECT_EQ(simple(Nested({2}, {2}), 8), DimensionPartition({2}));
}

// Simplifying again changes nothing: plans are read only in the simplest form.
TEST(Simplified, SimplifiedIsIdempotent) {
  const Mesh mesh{{"x", "one", "y"}, {4, 1, 2}};
  const int64_t step = 10 / Cases(10);
  for (int64_t extent = 1; extent <= 30; ++extent) {
    for (int64_t code = extent % step; code < 9 * 9 * 9; code += step) {
      const Shape shape = {extent};
      const PartitionSpec spec = {
          Nested({0, 1, 2}, {code % 9 + 1, code / 9 % 9 + 1, code / 81 + 1})};
      const PartitionSpec once = Simplified(spec, shape, mesh);
      ASSERT_EQ(Simplified(once, shape, mesh), once) << extent << " " << code;
    }
  }
}

TEST(Sharding, PinnedTensorIsOnlyOnItsRanks) {
  const Mesh mesh{{"pipe", "x", "y"}, {3, 2, 2}};
  const Shape shape = {6};
  PartitionSpec spec = {DimensionPartition{2}};
  spec.pins = {{0, {1, 2}}};
  const Sharding sharding(mesh, Replicas::kDedupe, shape, spec);
  EXPECT_EQ(sharding.BoxesOn(0), std::vector<Box>());
  EXPECT_EQ(sharding.BoxesOn(4), (std::vector<Box>{{{0}, {3}}}));
  EXPECT_EQ(sharding.BoxesOn(11), (std::vector<Box>{{{3}, {3}}}));
  EXPECT_EQ(sharding.FirstHolder(11), 5);
  EXPECT_FALSE(sharding.Stores(1));
  EXPECT_EQ(sharding.holders(), 4);
  EXPECT_EQ(sharding.CountBoxes(), 2);
  EXPECT_EQ(sharding.LargestRank(), 4);
  EXPECT_EQ(InText(spec, mesh), "[y] on pipe 1, 2");
}

TEST(PartsOf, PartCountIsTheProductOfAxes) {
  const Mesh mesh{{"x", "y"}, {3, 5}};
  EXPECT_EQ(PartsOf({}, mesh), 1);
  EXPECT_EQ(PartsOf({1}, mesh), 5);
  EXPECT_EQ(PartsOf({1, 0}, mesh), 15);
}

TEST(CountBoxes, BoxCountSkipsEmptyBoxesAndReplicas) {
  const Mesh mesh{{"x", "y"}, {4, 2}};
  EXPECT_EQ(CountBoxes({}, {}, mesh), 1);
  EXPECT_EQ(CountBoxes({5}, {{}}, mesh), 1);
  EXPECT_EQ(CountBoxes({5}, {{0}}, mesh), 3);
  EXPECT_EQ(CountBoxes({5, 8}, {{0}, {1}}, mesh), 6);
  EXPECT_EQ(CountBoxes({5}, {{0, 1}}, mesh), 5);
}

TEST(Mesh, MeshIsRowMajor) {
  const Mesh mesh{{"x", "y", "z"}, {2, 3, 4}};
  EXPECT_EQ(mesh.world_size(), 24);
  EXPECT_EQ(mesh.CoordinateOf(0), (Extents{0, 0, 0}));
  EXPECT_EQ(mesh.CoordinateOf(1), (Extents{0, 0, 1}));
  EXPECT_EQ(mesh.CoordinateOf(4), (Extents{0, 1, 0}));
  EXPECT_EQ(mesh.CoordinateOf(23), (Extents{1, 2, 3}));
  EXPECT_EQ(mesh.Find("y"), 1);
  EXPECT_EQ(mesh.Find("w"), -1);
}

TEST(Mesh, MeshWithoutAxesHasOneRank) {
  EXPECT_EQ(Mesh{}.world_size(), 1);
  EXPECT_EQ(Mesh{}.CoordinateOf(0), Extents{});
}

}  // namespace
}  // namespace shardinit
