#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "graph/stored/view.h"
#include "plan/plan.h"

namespace shardinit {
namespace {

// Finds the rank that holds the most bytes. Searches the indices on axes that tensors are pinned
// to, and on nested axes if the first rank does not hold the most. Among ranks with the same
// indices on these axes, the first rank holds the most of every tensor. Axes that no tensor
// connects are searched separately.
class LargestRank {
 public:
  explicit LargestRank(const Plan& plan) : plan_(plan), mesh_(plan.graph.mesh) {
    for (const Tensor& tensor : plan.graph.tensors) {
      for (const Pin& pin : tensor.partition().pins) axes_.insert(pin.axis);
    }
    while (AddNestedAxes()) continue;
    group_.resize(mesh_.axes.size());
    std::iota(group_.begin(), group_.end(), 0);
    for (const Tensor& tensor : plan.graph.tensors) Add(tensor);
  }

  int64_t Bytes() const {
    int64_t bytes = everywhere_;
    for (const int first : axes_) {
      if (group_[first] != first) continue;
      std::vector<int> axes;
      for (const int axis : axes_) {
        if (group_[axis] == first) axes.push_back(axis);
      }
      bytes += MostAt(axes);
    }
    return bytes;
  }

 private:
  // Nested axes are searched all or not at all: at some index of one axis, the first index of
  // another may hold less than the next one. Returns whether any axis was added.
  bool AddNestedAxes() {
    const size_t before = axes_.size();
    for (const Tensor& tensor : plan_.graph.tensors) {
      const Sharding sharding = plan_.ShardingOf(tensor);
      for (const DimensionPartition& by : tensor.partition().dimensions) {
        if (by.nested.empty()) continue;
        if (sharding.LargestRank() != sharding.LowestRank() ||
            std::any_of(by.axes.begin(), by.axes.end(),
                        [&](int axis) { return axes_.contains(axis); })) {
          axes_.insert(by.axes.begin(), by.axes.end());
        }
      }
    }
    return axes_.size() != before;
  }

  void Add(const Tensor& tensor) {
    const Sharding sharding = plan_.ShardingOf(tensor);
    const std::vector<Pin>& pins = tensor.partition().pins;
    std::vector<int> axes = UnevenAxes(tensor);
    if (axes.empty()) {
      const int64_t bytes = BytesOn(tensor, sharding.LargestRank());
      (pins.empty() ? everywhere_ : pinned_[pins]) += bytes;
    } else {
      uneven_.emplace_back(axes.front(), &tensor);
    }
    for (const Pin& pin : pins) axes.push_back(pin.axis);
    for (const int axis : axes) {
      const auto [to, from] = std::minmax({group_[axes.front()], group_[axis]});
      std::replace(group_.begin(), group_.end(), from, to);
    }
  }

  // Returns the searched axes that shard the tensor unevenly: ranks that differ only in these axes
  // hold different numbers of bytes.
  std::vector<int> UnevenAxes(const Tensor& tensor) const {
    std::vector<int> uneven;
    for (size_t d = 0; d < tensor.shape().size(); ++d) {
      const DimensionPartition& by = tensor.partition().dimensions[d];
      if (tensor.shape()[d] % DivisorOf(by, mesh_) == 0) continue;
      std::copy_if(by.axes.begin(), by.axes.end(), std::back_inserter(uneven),
                   [&](int axis) { return axes_.contains(axis); });
    }
    return uneven;
  }

  int64_t BytesOn(const Tensor& tensor, int64_t rank) const {
    return plan_.ShardingOf(tensor).ElementsOn(rank) * InfoOf(tensor.dtype()).bytes;
  }

  // Finds the first rank for each combination of indices on a group of axes. Returns the most bytes
  // of the group's tensors on any of these ranks.
  int64_t MostAt(const std::vector<int>& axes) const {
    const std::vector<int64_t> ranks = RanksAlong(axes, mesh_);
    std::vector<int64_t> bytes(ranks.size());
    for (const auto& [pins, of_tensors] : pinned_) {
      if (group_[pins.front().axis] != axes.front()) continue;
      for (const size_t place : PlacesOf(pins, axes)) bytes[place] += of_tensors;
    }
    for (const auto& [axis, tensor] : uneven_) {
      if (group_[axis] != axes.front()) continue;
      for (size_t place = 0; place < ranks.size(); ++place) {
        bytes[place] += BytesOn(*tensor, ranks[place]);
      }
    }
    return *std::max_element(bytes.begin(), bytes.end());
  }

  // Returns the positions of the pinned indices in the list of all indices on these axes.
  std::vector<size_t> PlacesOf(const std::vector<Pin>& pins, const std::vector<int>& axes) const {
    std::vector<size_t> places = {0};
    for (const int axis : axes) {
      const auto pin =
          std::find_if(pins.begin(), pins.end(), [&](const Pin& p) { return p.axis == axis; });
      std::vector<int64_t> all;
      if (pin == pins.end()) {
        all.resize(static_cast<size_t>(mesh_.shape[axis]));
        std::iota(all.begin(), all.end(), 0);
      }
      const std::vector<int64_t>& indices = pin == pins.end() ? all : pin->indices;
      std::vector<size_t> next;
      for (const size_t place : places) {
        for (const int64_t index : indices) {
          next.push_back(place * static_cast<size_t>(mesh_.shape[axis]) +
                         static_cast<size_t>(index));
        }
      }
      places = std::move(next);
    }
    return places;
  }

  const Plan& plan_;
  const Mesh& mesh_;
  std::set<int> axes_;      // the axes to search
  std::vector<int> group_;  // for each axis, the lowest axis that is searched together with it
  int64_t everywhere_ = 0;  // bytes of the tensors whose shards are equal at all indices
  std::map<std::vector<Pin>, int64_t> pinned_;
  std::vector<std::pair<int, const Tensor*>> uneven_;  // tensors, each with one of its axes
};

}  // namespace

int64_t RankPlan::bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.bytes();
  return bytes;
}

Plan MakePlan(InitGraph graph) {
  Plan plan{.graph = std::move(graph)};
  for (const Tensor& tensor : plan.graph.logical()) plan.parameters += ParametersOf(tensor);
  for (const Tensor& tensor : plan.graph.tensors) {
    plan.bytes += tensor.bytes();
    const Sharding sharding = plan.ShardingOf(tensor);
    const int64_t boxes = sharding.CountBoxes();
    plan.boxes += boxes;
    plan.most_boxes = std::max(plan.most_boxes, boxes);
    if (tensor.partition().IsExtended()) plan.format_version = kNewestFormatVersion;
  }
  plan.max_rank_bytes = LargestRank(plan).Bytes();
  return plan;
}

RankPlan PlanRank(const Plan& plan, int64_t rank) {
  RankPlan made{.rank = rank,
                .format_version = plan.format_version,
                .coordinate = plan.graph.mesh.CoordinateOf(rank),
                .shards = {}};
  std::vector<Box> boxes;
  for (const Tensor& tensor : plan.graph.tensors) {
    const Sharding sharding = plan.ShardingOf(tensor);
    if (!sharding.Stores(rank)) continue;
    sharding.FindBoxesOn(rank, &boxes);
    for (size_t part = 0; part < boxes.size(); ++part) {
      made.shards.push_back({&tensor, std::move(boxes[part]), part});
    }
  }
  return made;
}

int64_t BytesIn(const Plan& plan, const std::vector<int64_t>& ranks) {
  int64_t sum = 0;
  if (std::ssize(ranks) == plan.world_size()) return BytesInFiles(plan);
  for (const int64_t rank : ranks) sum += PlanRank(plan, rank).bytes();
  return sum;
}

int64_t BytesInFiles(const Plan& plan) {
  int64_t sum = 0;
  // The sum does not need the plans of ranks: each element is stored in `copies` files.
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

int64_t RankOf(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrefix = "rank-";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t rank = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), rank);
  return rank >= 0 && name == fmt::format("{}{:05}{}", kPrefix, rank, suffix) ? rank : -1;
}

std::vector<int64_t> AllRanks(const Mesh& mesh) {
  std::vector<int64_t> ranks(static_cast<size_t>(mesh.world_size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

std::string DatasetPath(const Tensor& tensor, size_t part) {
  std::string path = "/" + std::string(tensor.path());
  std::replace(path.begin(), path.end(), '.', '/');
  return part == 0 ? path : fmt::format("{}@{}", path, part);
}

}  // namespace shardinit
