// Computes the cost of a sharding: the bytes that a training step sends over each mesh axis, its
// computation, and the memory of a rank. Implements exactly the formulas in shardinit-auto(7).
//
// This is a model of the step; nothing is measured. Every cost is a sum over weights, except one
// property of whole blocks: whether axes split them.
#pragma once

#include <vector>

#include "autoshard/step.h"
#include "sharding/partition.h"

namespace shardinit {

// The dimension that a mesh axis shards, or -1, and the number of segments.
struct AxisPlacement {
  AxisPlacement(int d = -1, int64_t in_segments = 1) : dimension(d), segments(in_segments) {}

  int dimension;
  int64_t segments;

  auto operator<=>(const AxisPlacement&) const = default;
};
using AxisPlacements = std::vector<AxisPlacement>;  // for each mesh axis

// How a mesh axis is used for a weight.
enum class AxisStrategy {
  kWhole,     // the axis does not shard the weight
  kGathered,  // the weight is assembled for each use, as in fully_shard
  kSplit,     // each rank has whole heads, hidden units, or tokens of the vocabulary
  kRouted,    // each rank has whole experts, to which tokens are sent
};

// Options that apply to all blocks. They do not change which rank holds which box.
struct StepOptions {
  bool recompute = false;  // layers keep only their inputs and run twice
  bool sequence_parallel =
      false;  // Between blocks that axes split, each rank has a part of the tokens.

  bool operator==(const StepOptions&) const = default;
};
inline constexpr StepOptions kAllStepOptions[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

// The cost on a rank of one pipeline stage, or on the most loaded ranks.
struct StepCost {
  double seconds() const { return communication + computation; }

  double communication = 0, computation = 0;  // seconds in a step
  double memory = 0;  // bytes: weights, gradients, the optimizer's state, activations
  // Sums over all stages. `padding` is the bytes that equal shards of weights would add to the
  // tensors. `sharded_otherwise` counts the matrices that ranks with the same tokens shard for any
  // purpose except splitting or routing.
  double padding = 0, sharded_otherwise = 0;
  std::vector<double> bytes = {};  // sent in a step over each axis of the mesh
  StepOptions options = {};

  void Add(const StepCost& other);
  // Returns whether this cost is better. A cost that fits beats one that does not fit. If both fit,
  // the faster one wins; if neither fits, the smaller one wins.
  bool IsBetter(const StepCost& other, double memory_limit) const;
};
using StageCosts = std::vector<StepCost>;  // for each of StepModel's stages

// Returns how a partition shards a weight. Experts in separate tensors are also sharded by the axes
// that they are pinned to.
AxisPlacements PlacementsOf(const PartitionSpec& partition, const StepModel& model,
                            const StepWeight& weight);
// Returns the partition of one tensor; `expert` is its number, or -1. If several axes shard a
// dimension, the axes that split or route are the major ones, as with FSDP within tensor
// parallelism.
PartitionSpec PartitionOf(const AxisPlacements& placements, const std::vector<AxisStrategy>& uses,
                          const StepModel& model, const StepWeight& weight, int64_t expert);

// Returns how each axis is used for each weight of a block.
std::vector<std::vector<AxisStrategy>> UsesOf(const StepModel& model, const StepBlock& block,
                                              const std::vector<AxisPlacements>& placements);
// Returns the cost of a block whose weights are sharded in this way.
StageCosts CostOf(const StepModel& model, const StepBlock& block,
                  const std::vector<AxisPlacements>& placements, const StepOptions& options);
// Returns the cost outside of all blocks: the activations that layers keep.
StageCosts CostOutsideBlocks(const StepModel& model, const StepOptions& options);
// Returns the cost of all weights with the best options. A step takes as long as its slowest stage,
// and the memory is the fullest rank's.
StepCost CostOf(const StepModel& model, const std::vector<AxisPlacements>& placements);

}  // namespace shardinit
