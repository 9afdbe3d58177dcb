#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "plan/plan.h"

namespace shardinit {

int64_t RankPlan::bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.bytes();
  return bytes;
}

Plan MakePlan(InitGraph graph) {
  Plan plan{.graph = std::move(graph)};
  for (const Tensor& tensor : plan.graph.logical()) plan.parameters += tensor.elements();
  for (const Tensor& tensor : plan.graph.tensors) {
    plan.bytes += tensor.bytes();
    const Sharding sharding = plan.ShardingOf(tensor);
    const int64_t boxes = sharding.CountBoxes();
    plan.boxes += boxes;
    plan.most_boxes = std::max(plan.most_boxes, boxes);
    const Box most = sharding.BoxOn(Sharding::kLargestRank);
    plan.max_rank_bytes += ElementCount(most.shape) * InfoOf(tensor.dtype).bytes;
  }
  return plan;
}

RankPlan PlanRank(const Plan& plan, int64_t rank) {
  RankPlan made{.rank = rank, .coordinate = plan.graph.mesh.CoordinateOf(rank), .shards = {}};
  for (const Tensor& tensor : plan.graph.tensors) {
    const Sharding sharding = plan.ShardingOf(tensor);
    if (!sharding.Stores(rank)) continue;
    Box box = sharding.BoxOn(rank);
    if (!IsEmpty(box)) made.shards.push_back({&tensor, std::move(box)});
  }
  return made;
}

int64_t BytesIn(const Plan& plan, const std::vector<int64_t>& ranks) {
  int64_t sum = 0;
  if (static_cast<int64_t>(ranks.size()) < plan.world_size()) {
    for (const int64_t rank : ranks) sum += PlanRank(plan, rank).bytes();
    return sum;
  }
  // Without planning each rank: every element is in as many files as store it.
  for (const Tensor& tensor : plan.graph.tensors) {
    const int64_t copies =
        plan.graph.replicas == Replicas::kFull ? plan.ShardingOf(tensor).holders() : 1;
    int64_t bytes = 0;
    if (__builtin_mul_overflow(tensor.bytes(), copies, &bytes) ||
        __builtin_add_overflow(sum, bytes, &sum)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return sum;
}

std::string RankFile(int64_t rank) { return fmt::format("ranks/rank-{:05}.h5", rank); }
std::string ReceiptFile(int64_t rank) { return fmt::format("ranks/rank-{:05}.json", rank); }

std::string DatasetPath(const Tensor& tensor) {
  std::string path = "/" + tensor.path;
  std::replace(path.begin(), path.end(), '.', '/');
  return path;
}

}  // namespace shardinit
