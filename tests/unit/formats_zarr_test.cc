// Tests the chunk lengths of zarr arrays: all are equal, and as long as a shard if possible.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "formats/format.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

struct Chunks {
  Shape chunk;
  int64_t files;
  bool operator==(const Chunks&) const = default;
};

// Returns the chunks of a tensor of `shape` whose dimension d has parts[d] shards.
Chunks ChunksOf(const Shape& shape, const Shape& parts) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .seed = 0, .mesh = {}, .tensors = {}};
  PartitionSpec partition;
  for (size_t d = 0; d < shape.size(); ++d) {
    graph.mesh.axes.push_back("a" + std::to_string(d));
    graph.mesh.shape.push_back(parts[d]);
    partition.dimensions.push_back({static_cast<int>(d)});
  }
  graph.tensors.push_back(MakeTensor("w", DType::f32, shape, Normal{0, 1}, partition));
  const Plan plan = MakePlan(std::move(graph));
  const std::vector<const Tensor*> tensors = {&plan.graph.tensors[0]};
  Chunks found{{}, 0};
  for (const FileLayout& file : FindFormat("zarr")->lay_out({plan, tensors, {}})) {
    if (file.path == "w/.zarray") {
      found.chunk = nlohmann::json::parse(file.head)["chunks"].get<Shape>();
    }
    for (const FileBox& box : file.boxes) {
      EXPECT_EQ(box.box.shape.size(), shape.size());
      ++found.files;
    }
  }
  return found;
}

TEST(Zarr, ZarrChunksAreShardsIfShardsAreEqual) {
  const std::map<std::pair<int64_t, int64_t>, int64_t> kLengths = {
      {{12, 4}, 3},         {{12, 1}, 12}, {{5, 1}, 5},  // A shard.
      {{5, 3}, 5},                                       // 2, 2, 1; 1 is at most half of 2.
      {{7, 4}, 7},                                       // 2, 2, 2, 1.
      {{6, 4}, 2},                                       // 2, 2, 2, 0.
      {{9, 4}, 3},                                       // 3, 3, 3, 0.
      {{10, 4}, 2},                                      // 3, 3, 3, 1: nearly 3.
      {{1, 4}, 1},          {{2, 4}, 1},   {{3, 2}, 3}, {{8, 3}, 2},  // 3, 3, 2.
      {{10, 3}, 10},                                                  // 4, 4, 2; 2 is half of 4.
      {{12, 5}, 3},         {{28, 5}, 4},  // 6, 6, 6, 6, 4: neither 6 nor 5 divides 28.
      {{128256, 512}, 192},                // 251 does not divide it.
  };
  for (const auto& [by, length] : kLengths) {
    const auto [extent, parts] = by;
    EXPECT_EQ(ChunksOf({extent}, {parts}), (Chunks{{length}, extent / length}))
        << extent << " / " << parts;
  }
  EXPECT_EQ(ChunksOf({5, 6}, {3, 4}), (Chunks{{5, 2}, 3}));
  EXPECT_EQ(ChunksOf({}, {}), (Chunks{{}, 1}));
}

}  // namespace
}  // namespace shardinit
