// Compares random shapes, meshes and partitions with brute force.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "plan/part.h"
#include "plan/plan.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

struct Layout {
  Mesh mesh;
  Shape shape;
  PartitionSpec partition;

  Sharding sharding(Replicas replicas = Replicas::kDedupe) const {
    return {mesh, replicas, shape, partition};
  }
};

std::string Describe(const Layout& layout) {
  return fmt::format("shape [{}] mesh [{}] partition {}", fmt::join(layout.shape, ", "),
                     fmt::join(layout.mesh.shape, ", "), InText(layout.partition, layout.mesh));
}

// Implements torch.chunk by its definition.
std::vector<std::vector<int64_t>> Chunks(const std::vector<int64_t>& list, int64_t parts) {
  std::vector<std::vector<int64_t>> chunks(static_cast<size_t>(parts));
  const int64_t width = (std::ssize(list) + parts - 1) / parts;
  for (int64_t i = 0; i < std::ssize(list); ++i) {
    chunks[static_cast<size_t>(i / width)].push_back(list[static_cast<size_t>(i)]);
  }
  return chunks;
}

// Returns the indices of the rank's part of a dimension, by the definition: one list for each box.
std::vector<std::vector<int64_t>> IndicesOf(const DimensionPartition& by, int64_t extent,
                                            const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> left(static_cast<size_t>(extent));
  std::iota(left.begin(), left.end(), 0);
  // Takes the rank's part of the remaining indices, by axes a to b.
  const auto take = [&](int64_t segments, size_t a, size_t b) {
    size_t part = 0;
    int64_t parts = 1;
    for (; a < b; ++a) {
      const int64_t size = mesh.shape[static_cast<size_t>(by.axes[a])];
      part = part * static_cast<size_t>(size) + static_cast<size_t>(mesh.IndexOf(rank, by.axes[a]));
      parts *= size;
    }
    std::vector<std::vector<int64_t>> held;
    for (const auto& segment : Chunks(left, segments)) {
      if (!segment.empty()) held.push_back(Chunks(segment, parts)[part]);
    }
    return held;
  };
  if (by.nested.empty()) return take(by.segments, 0, by.axes.size());
  for (size_t a = 0, b = 0; a < by.axes.size(); a = b) {
    for (b = a + 1; b < by.axes.size() && by.nested[b] == 0;) ++b;
    std::vector<int64_t> all;
    for (const auto& held : take(by.nested[a], a, b)) {
      all.insert(all.end(), held.begin(), held.end());
    }
    left = std::move(all);
    if (left.empty()) break;
  }
  std::vector<std::vector<int64_t>> runs;
  for (const int64_t i : left) {
    if (runs.empty() || runs.back().back() + 1 != i) runs.emplace_back();
    runs.back().push_back(i);
  }
  return runs;
}

// Returns the rank's boxes by the definition of a partition: all combinations of the indices that
// the rank's parts of the segments have in each dimension.
std::vector<Box> ByDefinition(const Layout& layout, int64_t rank) {
  const std::vector<int64_t> coordinate = layout.mesh.CoordinateOf(rank);
  for (const Pin& pin : layout.partition.pins) {
    const auto index = coordinate[static_cast<size_t>(pin.axis)];
    if (std::count(pin.indices.begin(), pin.indices.end(), index) == 0) return {};
  }
  std::vector<Box> boxes = {Box()};
  for (size_t d = 0; d < layout.shape.size(); ++d) {
    std::vector<Box> more;
    for (const Box& box : boxes) {
      for (const auto& held :
           IndicesOf(layout.partition.dimensions[d], layout.shape[d], layout.mesh, rank)) {
        if (held.empty()) continue;
        more.push_back(box);
        more.back().offset.push_back(held.front());
        more.back().shape.push_back(std::ssize(held));
      }
    }
    boxes = std::move(more);
  }
  return boxes;
}

// Calls `check` with `count` random layouts.
template <typename F>
void ForLayouts(uint64_t seed, int count, F check) {
  Random random(seed);
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    Layout layout{RandomMesh(random), RandomShape(random), {}};
    layout.partition = RandomPartition(random, layout.mesh, layout.shape);
    SCOPED_TRACE(Describe(layout));
    check(layout);
  }
}

int64_t LinearIndex(const Shape& shape, const Shape& index) {
  int64_t linear = 0;
  for (size_t d = 0; d < shape.size(); ++d) linear = linear * shape[d] + index[d];
  return linear;
}

// Calls `visit` with the global index of every element of `box`, in row-major order.
template <typename F>
void ForElements(const Box& box, F visit) {
  const int64_t count = ElementCount(box.shape);
  for (int64_t i = 0; i < count; ++i) {
    Shape index(box.shape.size());
    int64_t rest = i;
    for (size_t d = index.size(); d-- > 0; rest /= box.shape[d]) {
      index[d] = box.offset[d] + rest % box.shape[d];
    }
    visit(index);
  }
}

// The boxes by offset and shape, with the ranks that hold them.
using Holders = std::map<std::pair<Shape, Shape>, std::vector<int64_t>>;
Holders HoldersByDefinition(const Layout& layout) {
  Holders holders;
  for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
    for (const Box& box : ByDefinition(layout, rank)) {
      holders[{box.offset, box.shape}].push_back(rank);
    }
  }
  return holders;
}

TEST(Sharding, BoxesMatchTheDefinition) {
  int64_t several = 0, nothing = 0, nested = 0;
  ForLayouts(1, 2000, [&](const Layout& layout) {
    const Sharding sharding = layout.sharding();
    nested += layout.partition.IsNested();
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const std::vector<Box> expected = ByDefinition(layout, rank);
      EXPECT_EQ(sharding.BoxesOn(rank), expected) << "rank " << rank;
      int64_t elements = 0;
      for (const Box& box : expected) elements += ElementCount(box.shape);
      EXPECT_EQ(sharding.ElementsOn(rank), elements) << "rank " << rank;
      several += expected.size() > 1;
      nothing += expected.empty();
    }
  });
  EXPECT_GT(several, 2000);
  EXPECT_GT(nothing, 2000);
  EXPECT_GT(nested, 50);
}

// This holds if boxes are equal or disjoint, and no box is missing.
TEST(Sharding, FirstReplicasCoverEveryElementExactlyOnce) {
  ForLayouts(2, 600, [](const Layout& layout) {
    std::vector<int> held(static_cast<size_t>(ElementCount(layout.shape)));
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      if (!layout.sharding().IsFirstHolder(rank)) continue;
      for (const Box& box : layout.sharding().BoxesOn(rank)) {
        ForElements(box, [&](const Shape& index) {
          ++held[static_cast<size_t>(LinearIndex(layout.shape, index))];
        });
      }
    }
    EXPECT_EQ(std::count(held.begin(), held.end(), 1), std::ssize(held));
  });
}

// Each rank's boxes equal the boxes of its first holder, which is the lowest rank with them.
// `holders` is the number of ranks that hold the same boxes.
TEST(Sharding, HoldersCountRanksWithEqualBoxes) {
  ForLayouts(14, 600, [](const Layout& layout) {
    const Sharding sharding = layout.sharding(), full = layout.sharding(Replicas::kFull);
    for (const auto& [box, holders] : HoldersByDefinition(layout)) {
      EXPECT_EQ(std::ssize(holders), sharding.holders());
      for (const int64_t rank : holders) {
        EXPECT_TRUE(full.Stores(rank));
        EXPECT_EQ(sharding.FirstHolder(rank), holders.front());
        EXPECT_EQ(sharding.Stores(rank), rank == holders.front());
      }
    }
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      if (full.Stores(rank)) continue;
      EXPECT_FALSE(sharding.Stores(rank));
      EXPECT_EQ(ByDefinition(layout, rank), std::vector<Box>());
    }
  });
}

TEST(Sharding, EachBoxIsVisitedOnceWithItsFirstHolder) {
  using Visit = std::tuple<int64_t, size_t, Shape, Shape>;
  ForLayouts(15, 600, [](const Layout& layout) {
    std::vector<Visit> expected, visited;
    const Holders holders = HoldersByDefinition(layout);
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const std::vector<Box> boxes = ByDefinition(layout, rank);
      for (size_t part = 0; part < boxes.size(); ++part) {
        const auto& [offset, shape] = boxes[part];
        if (holders.at({offset, shape}).front() == rank) {
          expected.emplace_back(rank, part, offset, shape);
        }
      }
    }
    layout.sharding().ForEachBox([&](int64_t rank, size_t part, const Box& box) {
      visited.emplace_back(rank, part, box.offset, box.shape);
    });
    EXPECT_EQ(visited, expected);
  });
}

// Two shardings are equal if and only if every rank holds the same boxes. Dimensions of 5040
// elements distinguish any two shardings: no part is empty, and all are equally long.
TEST(Sharding, ShardingsAreEqualIfEveryRankHoldsTheSame) {
  Random random(16);
  int64_t equal = 0;
  for (int i = 0; i < 20'000 && !testing::Test::HasFailure(); ++i) {
    const Shape shape(static_cast<size_t>(random.In(0, 2)), 5040);
    const auto layout = [&] {
      Layout made{{}, shape, {}};
      for (int64_t a = random.In(0, 3), room = 12; a > 0; --a) {
        made.mesh.axes.push_back("a" + std::to_string(random.In(0, 99)));
        made.mesh.shape.push_back(random.In(1, std::min<int64_t>(room, 4)));
        room /= made.mesh.shape.back();
      }
      made.partition = RandomPartition(random, made.mesh, shape);
      return made;
    };
    const Layout a = layout(), b = layout();
    bool same = a.mesh.world_size() == b.mesh.world_size();
    for (int64_t rank = 0; same && rank < a.mesh.world_size(); ++rank) {
      same = ByDefinition(a, rank) == ByDefinition(b, rank);
    }
    const bool said = a.sharding() == b.sharding();
    equal += said && a.mesh.shape != b.mesh.shape;
    // On different meshes one stage may equal two stages.
    if (same && !said && a.mesh.shape != b.mesh.shape && !a.partition.pins.empty()) continue;
    EXPECT_EQ(said, same) << Describe(a) << " and " << Describe(b);
  }
  EXPECT_GT(equal, 200);
}

TEST(Sharding, CountBoxesMatchesTheDefinition) {
  ForLayouts(5, 600, [](const Layout& layout) {
    EXPECT_EQ(layout.sharding().CountBoxes(), std::ssize(HoldersByDefinition(layout)));
  });
}

TEST(Sharding, LargestRankHoldsTheMostElements) {
  ForLayouts(6, 600, [](const Layout& layout) {
    const Sharding sharding = layout.sharding();
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      EXPECT_LE(sharding.ElementsOn(rank), sharding.ElementsOn(sharding.LargestRank()));
    }
  });
}

// The parts of a dimension, in order, have ceil(n / k) elements until no elements remain.
TEST(Sharding, ShardsDimensionsLikeTorchChunk) {
  Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const int64_t n = random.In(1, 100), k = random.In(1, 40);
    const Mesh mesh{{"x"}, {k}};
    int64_t left = n;
    for (int64_t part = 0; part < k; ++part) {
      const int64_t held = Sharding(mesh, Replicas::kDedupe, {n}, {{0}}).ElementsOn(part);
      EXPECT_EQ(held, std::min(left, (n + k - 1) / k)) << n << " / " << k;
      left -= held;
    }
    EXPECT_EQ(left, 0) << n << " / " << k;
  }
}

// An axis with the product's size shards like the tuple: (a, b) is c[a] * |b| + c[b].
TEST(Sharding, TupleShardsLikeOneAxisOfItsProduct) {
  Random random(8);
  for (int i = 0; i < 500; ++i) {
    const int64_t a = random.In(1, 5), b = random.In(1, 5), n = random.In(1, 60);
    const Mesh two{{"a", "b"}, {a, b}}, one{{"ab"}, {a * b}};
    const auto boxes = [&](const Mesh& mesh, const PartitionSpec& partition, int64_t rank) {
      return Sharding(mesh, Replicas::kDedupe, {n}, partition).BoxesOn(rank);
    };
    for (int64_t rank = 0; rank < a * b; ++rank) {
      const auto coordinate = two.CoordinateOf(rank);
      EXPECT_EQ(boxes(two, {{0, 1}}, rank), boxes(one, {{0}}, rank));
      EXPECT_EQ(boxes(two, {{1, 0}}, rank), boxes(one, {{0}}, coordinate[1] * a + coordinate[0]));
    }
  }
}

TEST(Sharding, CoordinatesNumberTheRanks) {
  Random random(9);
  for (int i = 0; i < 200; ++i) {
    const Mesh mesh = RandomMesh(random);
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
      EXPECT_EQ(LinearIndex(mesh.shape, coordinate), rank);
      for (size_t a = 0; a < coordinate.size(); ++a) {
        EXPECT_LT(coordinate[a], mesh.shape[a]);
        EXPECT_EQ(mesh.IndexOf(rank, static_cast<int>(a)), coordinate[a]);
      }
    }
  }
}

// Compares a plan's totals with its ranks, for whole models.

// Returns a plan of a few tensors of all kinds on a mesh of a few ranks.
Plan RandomPlan(Random& random) {
  InitGraph graph{
      .name = "x", .engine = "philox4x32", .seed = 1, .mesh = RandomMesh(random), .tensors = {}};
  const int64_t tensors = random.In(1, 6);
  for (int64_t t = 0; t < tensors; ++t) {
    Shape shape = RandomShape(random, 500);
    PartitionSpec partition = RandomPartition(random, graph.mesh, shape);
    const auto dtype = DTypes()[static_cast<size_t>(random.In(0, std::ssize(DTypes()) - 1))].dtype;
    graph.tensors.push_back(MakeTensor("t" + std::to_string(t), dtype, std::move(shape),
                                       Normal{0, 1}, std::move(partition)));
  }
  return MakePlan(std::move(graph));
}

TEST(Sharding, PlanTotalsAreSumsOverRanks) {
  Random random(10);
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    Plan plan = RandomPlan(random);
    int64_t bytes = 0, boxes = 0, most = 0, all = 0;
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      const RankPlan made = PlanRank(plan, rank);
      EXPECT_EQ(made.rank, rank);
      bytes += made.bytes();
      boxes += std::ssize(made.shards);
      most = std::max(most, made.bytes());
    }
    EXPECT_EQ(bytes, plan.bytes);
    EXPECT_EQ(boxes, plan.boxes);
    EXPECT_LE(most, plan.max_rank_bytes);
    most = 0;
    // With full replicas every rank stores its own box of every tensor.
    plan.graph.replicas = Replicas::kFull;
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      const RankPlan made = PlanRank(plan, rank);
      most = std::max(most, made.bytes());
      all += made.bytes();
    }
    EXPECT_EQ(most, plan.max_rank_bytes);
    EXPECT_GE(all, plan.bytes);
  }
}

TEST(Sharding, PartsCoverAllRanksAndAreBalanced) {
  Random random(11);
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    Plan plan = RandomPlan(random);
    if (random.In(0, 1) == 0) plan.graph.replicas = Replicas::kFull;
    std::vector<int64_t> bytes;
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      bytes.push_back(PlanRank(plan, rank).bytes());
    }
    const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    const int64_t most = *std::max_element(bytes.begin(), bytes.end());
    for (int64_t count = 1; count <= 9; ++count) {
      const std::vector<int64_t> first = RanksOfParts(plan, count);
      ASSERT_EQ(std::ssize(first), count + 1);
      EXPECT_EQ(first.front(), 0);
      EXPECT_EQ(first.back(), plan.world_size());
      EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
      for (size_t part = 0; part < static_cast<size_t>(count); ++part) {
        const int64_t of_part = std::accumulate(bytes.begin() + first[part],
                                                bytes.begin() + first[part + 1], int64_t{0});
        EXPECT_LE(count * of_part, all + count * most) << "part " << part << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace shardinit
