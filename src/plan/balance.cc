#include "plan/balance.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <unordered_map>

namespace shardinit {
namespace {

constexpr int64_t kMostSums = int64_t{1} << 20;

using Wide = __int128;

int64_t Saturated(Wide value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return value > kMost ? kMost : static_cast<int64_t>(value);
}

void AddTo(std::string* key, int64_t number) {
  key->append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Adds the axes whose indices affect how much of the tensor a rank holds.
void AddUnequalAxes(const Tensor& tensor, const Mesh& mesh, std::set<int>* axes) {
  for (const Pin& pin : tensor.partition().pins) axes->insert(pin.axis);
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const DimensionPartition& by = tensor.partition().dimensions[d];
    if (tensor.shape()[d] % DivisorOf(by, mesh) == 0) continue;
    axes->insert(by.axes.begin(), by.axes.end());
  }
}

}  // namespace

std::vector<TensorKind> KindsOf(const Plan& plan) {
  std::vector<TensorKind> kinds;
  std::unordered_map<std::string, size_t> found;
  std::string key;
  for (const Tensor& tensor : plan.graph.tensors) {
    key.clear();
    AddTo(&key, InfoOf(tensor.dtype()).bytes);
    AddTo(&key, std::ssize(tensor.shape()));
    for (size_t d = 0; d < tensor.shape().size(); ++d) {
      const DimensionPartition& by = tensor.partition().dimensions[d];
      AddTo(&key, tensor.shape()[d]);
      AddTo(&key, by.segments);
      AddTo(&key, std::ssize(by.axes));
      for (const int axis : by.axes) AddTo(&key, axis);
      AddTo(&key, std::ssize(by.nested));
      for (const int64_t segments : by.nested) AddTo(&key, segments);
    }
    for (const Pin& pin : tensor.partition().pins) {
      AddTo(&key, pin.axis);
      AddTo(&key, std::ssize(pin.indices));
      for (const int64_t index : pin.indices) AddTo(&key, index);
    }
    const auto [it, is_new] = found.try_emplace(key, kinds.size());
    if (is_new) kinds.push_back({&tensor});
    ++kinds[it->second].count;
  }
  return kinds;
}

RankLoad LoadOf(const Plan& plan, const std::vector<TensorKind>& kinds, int64_t rank) {
  RankLoad load;
  for (const TensorKind& kind : kinds) {
    const Sharding sharding = plan.ShardingOf(*kind.tensor);
    const int64_t bytes = sharding.ElementsOn(rank) * kind.bytes_per_element() * kind.count;
    load.held += bytes;
    if (sharding.Stores(rank)) load.stored += bytes;
  }
  return load;
}

Balance BalanceOf(const Plan& plan, const std::vector<TensorKind>& kinds) {
  const Mesh& mesh = plan.graph.mesh;
  Wide held = 0, padding = 0;
  // For each rank: the bytes of the tensors that all ranks hold equally.
  int64_t everywhere = 0;
  std::vector<TensorKind> unequal;
  std::set<int> axes;
  for (const TensorKind& kind : kinds) {
    const Sharding sharding = plan.ShardingOf(*kind.tensor);
    const int64_t largest = sharding.ElementsOn(sharding.LargestRank());
    const int64_t bytes = kind.bytes_per_element() * kind.count;
    // Number of ranks that hold part of the tensor, or would if it were large enough.
    int64_t ranks = mesh.world_size();
    for (const Pin& pin : kind.tensor->partition().pins) {
      ranks = ranks / mesh.shape[pin.axis] * std::ssize(pin.indices);
    }
    const Wide of_all = Wide(kind.tensor->elements()) * sharding.holders();
    held += of_all * bytes;
    padding += (Wide(largest) * ranks - of_all) * bytes;
    const bool is_equal = of_all == Wide(largest) * mesh.world_size();
    if (is_equal) {
      everywhere += largest * bytes;
    } else {
      unequal.push_back(kind);
      AddUnequalAxes(*kind.tensor, mesh, &axes);
    }
  }
  Balance balance{.held = Saturated(held), .padding = Saturated(padding)};
  int64_t places = 1;
  for (const int axis : axes) places *= mesh.shape[axis];
  if (places > kMostSums / std::max<int64_t>(1, std::ssize(unequal))) return balance;
  for (const int64_t rank : RanksAlong({axes.begin(), axes.end()}, mesh)) {
    balance.ranks[everywhere + LoadOf(plan, unequal, rank).held] += mesh.world_size() / places;
  }
  return balance;
}

}  // namespace shardinit
