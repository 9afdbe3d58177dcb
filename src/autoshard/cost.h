// The cost of a sharding: the bytes that a training step sends over each mesh axis, its
// computation, and the memory of a rank. shardinit-auto(7) has the formulas; what is computed here
// is what stands there.
//
// A model of the step, not a measurement. Everything is a sum over weights, but for one thing that
// those of a block decide together: whether axes split it.
#pragma once

#include <vector>

#include "autoshard/step.h"
#include "sharding/partition.h"

namespace shardinit {

// The dimension that a mesh axis cuts, or -1, and in how many segments.
struct AxisCut {
  AxisCut(int d = -1, int64_t in_segments = 1) : dimension(d), segments(in_segments) {}

  int dimension;
  int64_t segments;

  auto operator<=>(const AxisCut&) const = default;
};
using AxisCuts = std::vector<AxisCut>;  // Of each axis.

// What it means that an axis cuts a weight.
enum class CutUse {
  kWhole,     // It does not.
  kGathered,  // The weight is put together for each use, as fully_shard does.
  kSplit,     // Each rank has whole heads, hidden units, tokens of the vocabulary.
  kRouted,    // Each rank has whole experts, to which tokens are sent.
};

// What all blocks have in common. None of it changes which rank holds what.
struct StepOptions {
  bool recompute = false;  // Layers keep what they were given, and are run twice.
  bool sequence_parallel =
      false;  // Between blocks that axes split, each rank has a part of the tokens.

  bool operator==(const StepOptions&) const = default;
};
inline constexpr StepOptions kAllStepOptions[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

// Of a rank of one stage of a pipeline, or of the ranks that have most.
struct StepCost {
  double seconds() const { return communication + computation; }

  double communication = 0, computation = 0;  // Seconds in a step.
  double memory = 0;  // Bytes: weights, gradients, the optimizer's state, activations.
  // Of all stages together: bytes that equal shards of weights would have beyond the tensors, and
  // matrices that ranks with the same tokens cut otherwise than to split them or to route tokens.
  double padding = 0, cut_otherwise = 0;
  std::vector<double> bytes = {};  // Sent in a step over each axis of the mesh.
  StepOptions options = {};

  void Add(const StepCost& other);
  // The one that fits, of two that do the faster one, of two that do not the smaller one.
  bool IsBetter(const StepCost& other, double memory_limit) const;
};
using StageCosts = std::vector<StepCost>;  // Of each of StepModel's stages.

// How a partition cuts a weight. Experts that are tensors of their own are cut by those axes, too,
// to which they are pinned.
AxisCuts CutsOf(const PartitionSpec& partition, const StepModel& model, const StepWeight& weight);
// Of one tensor; `expert` is its number, or -1. On one dimension axes that split or route are the
// major ones, as of FSDP within tensor parallelism.
PartitionSpec PartitionOf(const AxisCuts& cuts, const std::vector<CutUse>& uses,
                          const StepModel& model, const StepWeight& weight, int64_t expert);

// Of each weight of a block, of each axis.
std::vector<std::vector<CutUse>> UsesOf(const StepModel& model, const StepBlock& block,
                                        const std::vector<AxisCuts>& cuts);
// Of a block whose weights are cut in these ways.
StageCosts CostOf(const StepModel& model, const StepBlock& block, const std::vector<AxisCuts>& cuts,
                  const StepOptions& options);
// What there is beside blocks: what layers keep.
StageCosts CostBeside(const StepModel& model, const StepOptions& options);
// Of all weights, with the options that are best: a step takes as long as its slowest stage, and
// each rank needs no more than the fullest one.
StepCost CostOf(const StepModel& model, const std::vector<AxisCuts>& cuts);

}  // namespace shardinit
