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

// Of each mesh axis the dimension that it cuts, or -1.
using AxisCuts = std::vector<int>;

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

// Of a rank that has most.
struct StepCost {
  double seconds() const { return communication + computation; }

  double communication = 0, computation = 0;  // Seconds in a step.
  double memory = 0;   // Bytes: weights, gradients, the optimizer's state, activations.
  double padding = 0;  // Bytes that equal shards of weights would have beyond the tensors.
  // Matrices that ranks with the same tokens cut otherwise than to split them or to route tokens.
  double cut_otherwise = 0;
  std::vector<double> bytes = {};  // Sent in a step over each axis of the mesh.
  StepOptions options = {};

  void Add(const StepCost& other);
  // The one that fits, of two that do the faster one, of two that do not the smaller one.
  bool IsBetter(const StepCost& other, double memory_limit) const;
};

AxisCuts CutsOf(const PartitionSpec& partition, const Mesh& mesh);
// On one dimension axes that split or route are the major ones, as of FSDP within tensor
// parallelism.
PartitionSpec PartitionOf(const AxisCuts& cuts, const std::vector<CutUse>& uses, size_t dimensions);

// Of each weight of a block, of each axis.
std::vector<std::vector<CutUse>> UsesOf(const StepModel& model, const StepBlock& block,
                                        const std::vector<AxisCuts>& cuts);
// Of a block whose weights are cut in these ways.
StepCost CostOf(const StepModel& model, const StepBlock& block, const std::vector<AxisCuts>& cuts,
                const StepOptions& options);
// What there is beside blocks: what layers keep.
StepCost CostBeside(const StepModel& model, const StepOptions& options);
// Of all weights, with the options that are best.
StepCost CostOf(const StepModel& model, const std::vector<AxisCuts>& cuts);

}  // namespace shardinit
