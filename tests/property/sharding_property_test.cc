// For random shapes, meshes and partitions, held against brute force.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

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
                     fmt::join(layout.mesh.shape, ", "), layout.partition);
}

// Calls with `count` random layouts.
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

// Calls with the global index of every element of `box`, in row-major order.
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

Box BoxOf(const Layout& layout, int64_t rank) { return layout.sharding().BoxOn(rank); }

TEST(Sharding, FirstReplicasCoverEveryElementExactlyOnce) {
  ForLayouts(1, 600, [](const Layout& layout) {
    std::vector<int> held(static_cast<size_t>(ElementCount(layout.shape)));
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      if (!layout.sharding().IsFirstHolder(rank)) continue;
      ForElements(BoxOf(layout, rank), [&](const Shape& index) {
        ++held[static_cast<size_t>(LinearIndex(layout.shape, index))];
      });
    }
    EXPECT_EQ(std::count(held.begin(), held.end(), 1), std::ssize(held));
  });
}

TEST(Sharding, BoxesAreEqualOrDisjoint) {
  ForLayouts(2, 300, [](const Layout& layout) {
    const int64_t ranks = layout.mesh.world_size();
    for (int64_t a = 0; a < ranks; ++a) {
      const Box first = BoxOf(layout, a);
      if (IsEmpty(first)) continue;
      for (int64_t b = 0; b < a; ++b) {
        const Box second = BoxOf(layout, b);
        if (IsEmpty(second) || first == second) continue;
        bool overlap = true;
        for (size_t d = 0; d < layout.shape.size(); ++d) {
          overlap &= first.offset[d] < second.offset[d] + second.shape[d] &&
                     second.offset[d] < first.offset[d] + first.shape[d];
        }
        EXPECT_FALSE(overlap) << "ranks " << b << " and " << a;
      }
    }
  });
}

TEST(Sharding, BoxesStayInsideTheTensor) {
  ForLayouts(3, 600, [](const Layout& layout) {
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Box box = BoxOf(layout, rank);
      ASSERT_EQ(box.shape.size(), layout.shape.size());
      for (size_t d = 0; d < layout.shape.size(); ++d) {
        EXPECT_GE(box.offset[d], 0);
        EXPECT_GE(box.shape[d], 0);
        EXPECT_LE(box.offset[d] + box.shape[d], layout.shape[d]);
      }
    }
  });
}

TEST(Sharding, TheFirstReplicaIsTheLowestRank) {
  ForLayouts(4, 600, [](const Layout& layout) {
    // Empty boxes of one dimension may differ in another: count only real ones.
    std::set<std::pair<Shape, Shape>> seen;
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Box box = BoxOf(layout, rank);
      if (IsEmpty(box)) continue;
      const bool is_new = seen.emplace(box.offset, box.shape).second;
      EXPECT_EQ(layout.sharding().IsFirstHolder(rank), is_new) << "rank " << rank;
    }
  });
}

// Of the ranks that hold something: each one's box is that of its first holder, which is the
// lowest with it, and as many hold the same as `holders` says.
TEST(Sharding, HoldersAreTheRanksOfEqualBoxes) {
  ForLayouts(14, 600, [](const Layout& layout) {
    const Sharding sharding = layout.sharding(), full = layout.sharding(Replicas::kFull);
    std::map<std::pair<Shape, Shape>, std::vector<int64_t>> ranks;
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      EXPECT_TRUE(full.Stores(rank));
      const Box box = sharding.BoxOn(rank);
      EXPECT_EQ(sharding.BoxOn(sharding.FirstHolder(rank)), box);
      if (!IsEmpty(box)) ranks[{box.offset, box.shape}].push_back(rank);
    }
    for (const auto& [box, holders] : ranks) {
      EXPECT_EQ(std::ssize(holders), sharding.holders());
      for (const int64_t rank : holders) {
        EXPECT_EQ(sharding.FirstHolder(rank), holders.front());
        EXPECT_EQ(sharding.Stores(rank), rank == holders.front());
      }
    }
  });
}

TEST(Sharding, EachBoxIsVisitedOnceWithItsFirstHolder) {
  ForLayouts(15, 600, [](const Layout& layout) {
    std::vector<std::pair<int64_t, Box>> expected, visited;
    std::set<std::pair<Shape, Shape>> seen;
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Box box = BoxOf(layout, rank);
      if (!IsEmpty(box) && seen.emplace(box.offset, box.shape).second) {
        expected.emplace_back(rank, box);
      }
    }
    layout.sharding().ForEachBox(
        [&](int64_t rank, const Box& box) { visited.emplace_back(rank, box); });
    EXPECT_EQ(visited, expected);
  });
}

// Shapes of 5040 elements a dimension tell any two ways to cut apart: no part is empty, and
// all are equally long.
TEST(Sharding, IsEqualIfEveryRankHoldsTheSame) {
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
      same = BoxOf(a, rank) == BoxOf(b, rank);
    }
    equal += same && a.mesh.shape != b.mesh.shape;
    EXPECT_EQ(a.sharding() == b.sharding(), same) << Describe(a) << " and " << Describe(b);
  }
  EXPECT_GT(equal, 200);
}

TEST(Sharding, CountBoxesCountsThem) {
  ForLayouts(5, 600, [](const Layout& layout) {
    std::set<std::pair<Shape, Shape>> boxes;
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Box box = BoxOf(layout, rank);
      if (!IsEmpty(box)) boxes.emplace(box.offset, box.shape);
    }
    EXPECT_EQ(layout.sharding().CountBoxes(), std::ssize(boxes));
  });
}

TEST(Sharding, NoRankHoldsMoreOfAnyDimensionThanRankZero) {
  ForLayouts(6, 600, [](const Layout& layout) {
    const Box most = BoxOf(layout, Sharding::kLargestRank);
    for (int64_t rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Box box = BoxOf(layout, rank);
      for (size_t d = 0; d < layout.shape.size(); ++d) EXPECT_LE(box.shape[d], most.shape[d]);
    }
  });
}

// The parts of a dimension, in order, are ceil(n / k) until nothing is left.
TEST(Sharding, EveryDimensionIsCutLikeTorchChunk) {
  Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const int64_t n = random.In(1, 100), k = random.In(1, 40);
    const Mesh mesh{{"x"}, {k}};
    int64_t left = n;
    for (int64_t part = 0; part < k; ++part) {
      const Box box = Sharding(mesh, Replicas::kDedupe, {n}, {{0}}).BoxOn(part);
      EXPECT_EQ(box.shape[0], std::min(left, (n + k - 1) / k)) << n << " / " << k;
      left -= box.shape[0];
    }
    EXPECT_EQ(left, 0) << n << " / " << k;
  }
}

// One axis of the product's size cuts like the tuple: (a, b) is c[a] * |b| + c[b].
TEST(Sharding, ATupleCutsLikeOneAxisOfItsProduct) {
  Random random(8);
  for (int i = 0; i < 500; ++i) {
    const int64_t a = random.In(1, 5), b = random.In(1, 5), n = random.In(1, 60);
    const Mesh two{{"a", "b"}, {a, b}}, one{{"ab"}, {a * b}};
    const auto box = [&](const Mesh& mesh, const PartitionSpec& partition, int64_t rank) {
      return Sharding(mesh, Replicas::kDedupe, {n}, partition).BoxOn(rank);
    };
    for (int64_t rank = 0; rank < a * b; ++rank) {
      const auto coordinate = two.CoordinateOf(rank);
      EXPECT_EQ(box(two, {{0, 1}}, rank), box(one, {{0}}, rank));
      EXPECT_EQ(box(two, {{1, 0}}, rank), box(one, {{0}}, coordinate[1] * a + coordinate[0]));
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

// A plan's totals against its ranks, for whole models.
TEST(Sharding, PlansAddUp) {
  Random random(10);
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    InitGraph graph{
        .name = "x", .engine = "philox4x32", .seed = 1, .mesh = RandomMesh(random), .tensors = {}};
    const int64_t tensors = random.In(1, 6);
    for (int64_t t = 0; t < tensors; ++t) {
      Shape shape = RandomShape(random, 500);
      PartitionSpec partition = RandomPartition(random, graph.mesh, shape);
      const auto dtype =
          DTypes()[static_cast<size_t>(random.In(0, std::ssize(DTypes()) - 1))].dtype;
      graph.tensors.push_back(MakeTensor("t" + std::to_string(t), dtype, std::move(shape),
                                         Normal{0, 1}, std::move(partition)));
    }
    Plan plan = MakePlan(std::move(graph));
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
    EXPECT_EQ(most, plan.max_rank_bytes);
    EXPECT_EQ(most, PlanRank(plan, 0).bytes());
    // With full replicas everyone holds their own box of every tensor.
    plan.graph.replicas = Replicas::kFull;
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      const RankPlan made = PlanRank(plan, rank);
      EXPECT_LE(made.bytes(), plan.max_rank_bytes);
      all += made.bytes();
    }
    EXPECT_GE(all, plan.bytes);
  }
}

}  // namespace
}  // namespace shardinit
