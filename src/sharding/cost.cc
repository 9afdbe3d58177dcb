#include "sharding/cost.h"

#include <algorithm>

#include "base/checked_math.h"

namespace shardinit {
namespace {

// What each of n ranks sends to have something from, or give something to, all others.
double Exchange(double bytes, int64_t n) {
  return bytes * static_cast<double>(n - 1) / static_cast<double>(n);
}

// Of a dimension, what the axes for which `holds` leave to a rank.
template <typename F>
double PartOf(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts, size_t d,
              F holds) {
  int64_t part = weight.shape[d];
  int64_t parts = 1;
  for (size_t a = 0; a < cuts.size(); ++a) {
    if (cuts[a] == static_cast<int>(d) && holds(a)) parts *= model.axes[a].size;
  }
  return static_cast<double>(CeilDiv(part, parts));
}

bool IsGathered(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts, size_t a) {
  return model.axes[a].use == AxisUse::kBatch ||
         weight.roles[static_cast<size_t>(cuts[a])] == DimensionRole::kPlain;
}

}  // namespace

AxisCuts CutsOf(const PartitionSpec& partition, const Mesh& mesh) {
  AxisCuts cuts(mesh.axes.size(), -1);
  for (size_t d = 0; d < partition.cuts.size(); ++d) {
    for (const int axis : partition.cuts[d].axes) {
      if (mesh.shape[static_cast<size_t>(axis)] > 1) {
        cuts[static_cast<size_t>(axis)] = static_cast<int>(d);
      }
    }
  }
  return cuts;
}

PartitionSpec PartitionOf(const AxisCuts& cuts, size_t dimensions, const StepModel& model) {
  PartitionSpec partition(dimensions);
  for (const bool is_batch : {false, true}) {
    for (size_t a = 0; a < cuts.size(); ++a) {
      if (cuts[a] < 0 || (model.axes[a].use == AxisUse::kBatch) != is_batch) continue;
      partition.cuts[static_cast<size_t>(cuts[a])].axes.push_back(static_cast<int>(a));
    }
  }
  return partition;
}

bool StepCost::IsBelow(const StepCost& other) const {
  // Sums in another order are no other cost.
  constexpr double kSame = 1 - 1e-12;
  return padding != other.padding ? padding < other.padding : seconds < other.seconds * kSame;
}

double Seconds(const StepModel& model, const std::vector<double>& bytes) {
  double seconds = 0;
  for (size_t a = 0; a < bytes.size(); ++a) seconds += bytes[a] / model.axes[a].bandwidth;
  return seconds;
}

StepCost CostAlone(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts) {
  StepCost cost;
  cost.bytes.resize(model.axes.size());
  const auto bytes = static_cast<double>(weight.element_bytes);
  double shard = bytes, whole = bytes, padded = bytes;
  for (size_t d = 0; d < weight.shape.size(); ++d) {
    const double part = PartOf(model, weight, cuts, d, [](size_t) { return true; });
    shard *= part;
    whole *= static_cast<double>(weight.shape[d]);
    double parts = 1;
    for (size_t a = 0; a < cuts.size(); ++a) {
      if (cuts[a] == static_cast<int>(d)) parts *= static_cast<double>(model.axes[a].size);
    }
    padded *= part * parts;
  }
  cost.rank_bytes = weight.count * shard;
  cost.padding = weight.count * (padded - whole);

  // Weights are gathered over one axis after the other, batch axes first: in both passes, and
  // gradients go the same way back.
  double gathered = shard;
  for (const AxisUse use : {AxisUse::kBatch, AxisUse::kComputation}) {
    for (size_t a = 0; a < cuts.size(); ++a) {
      const StepAxis& axis = model.axes[a];
      if (axis.use != use || cuts[a] < 0 || !IsGathered(model, weight, cuts, a)) continue;
      gathered *= static_cast<double>(axis.size);
      cost.bytes[a] += 3 * weight.count * Exchange(gathered, axis.size);
    }
  }
  // Of what batch axes do not cut, gradients are all-reduced.
  for (size_t a = 0; a < cuts.size(); ++a) {
    if (model.axes[a].use != AxisUse::kBatch || cuts[a] >= 0) continue;
    cost.bytes[a] += 2 * weight.count * Exchange(shard, model.axes[a].size);
  }

  // The activations of one pass, in and out, as the other computation axes leave them.
  const auto activation = [&](DimensionRole role) {
    double width = weight.runs * model.tokens * bytes;
    for (size_t d = 0; d < weight.shape.size(); ++d) {
      if (weight.roles[d] != role) continue;
      width *= PartOf(model, weight, cuts, d,
                      [&](size_t a) { return model.axes[a].use == AxisUse::kComputation; });
    }
    return width;
  };
  for (size_t a = 0; a < cuts.size(); ++a) {
    if (cuts[a] < 0 || model.axes[a].use != AxisUse::kComputation) continue;
    const DimensionRole role = weight.roles[static_cast<size_t>(cuts[a])];
    // Two passes; an all-reduce is a reduce-scatter and an all-gather. To experts and back.
    if (role == DimensionRole::kContracted) {
      cost.bytes[a] += 4 * Exchange(activation(DimensionRole::kProduced), model.axes[a].size);
    } else if (role == DimensionRole::kExperts) {
      cost.bytes[a] += 2 * Exchange(activation(DimensionRole::kContracted), model.axes[a].size);
    }
  }
  cost.seconds = Seconds(model, cost.bytes);
  return cost;
}

double Disagreement(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts,
                    size_t dimension, size_t axis, bool is_cut) {
  const bool cuts_it = cuts[axis] == static_cast<int>(dimension);
  if (cuts_it == is_cut) return 0;
  switch (weight.roles[dimension]) {
    case DimensionRole::kContracted:
    case DimensionRole::kProduced:
      break;
    case DimensionRole::kElementwise:  // A rank takes its part of a whole one.
      if (!cuts_it) return 0;
      break;
    case DimensionRole::kExperts:
    case DimensionRole::kPlain:
      return 0;
  }
  return 2 * Exchange(weight.runs * model.tokens * static_cast<double>(weight.element_bytes) *
                          static_cast<double>(weight.shape[dimension]),
                      model.axes[axis].size);
}

StepCost CostOf(const StepModel& model, const std::vector<AxisCuts>& cuts) {
  const size_t axes = model.axes.size();
  StepCost cost;
  cost.bytes.resize(axes);
  // Of each logical and mesh axis: where activations are whole, where they are cut.
  struct Pair {
    double whole = 0, cut = 0;
    bool has_matrix = false;
  };
  std::vector<Pair> pairs(static_cast<size_t>(model.logical_axes) * axes);
  for (size_t w = 0; w < model.weights.size(); ++w) {
    const StepWeight& weight = model.weights[w];
    const StepCost alone = CostAlone(model, weight, cuts[w]);
    cost.padding += alone.padding;
    cost.rank_bytes += alone.rank_bytes;
    for (size_t a = 0; a < axes; ++a) cost.bytes[a] += alone.bytes[a];
    for (size_t d = 0; d < weight.shape.size(); ++d) {
      if (weight.logical[d] < 0) continue;
      for (size_t a = 0; a < axes; ++a) {
        if (model.axes[a].use != AxisUse::kComputation) continue;
        Pair& pair = pairs[static_cast<size_t>(weight.logical[d]) * axes + a];
        pair.whole += Disagreement(model, weight, cuts[w], d, a, false);
        pair.cut += Disagreement(model, weight, cuts[w], d, a, true);
        pair.has_matrix |= weight.roles[d] == DimensionRole::kContracted ||
                           weight.roles[d] == DimensionRole::kProduced;
      }
    }
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    cost.bytes[i % axes] += pair.has_matrix ? std::min(pair.whole, pair.cut) : pair.whole;
  }
  cost.seconds = Seconds(model, cost.bytes);
  return cost;
}

}  // namespace shardinit
