// Reads a training step from a spec and its names, to find the cost of a sharding (autoshard/).
// shardinit-auto(7) explains each name.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autoshard/cost.h"
#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

// The part of a rank's memory that a choice may use. The rest is for what is not counted: buffers
// of collectives and kernels, fragmentation.
inline constexpr double kCountedMemory = 0.95;

// Reports mistakes in `bandwidth` and `training`.
Training BindTraining(Building& building, const Mesh& mesh);

// The tensors of a spec as weights: equal tensors of one TensorSpec are one weight.
struct TrainingStep {
  StepModel model;
  std::vector<uint32_t> weights;  // index of each tensor's weight
};

// `drawn` has fans. `by_partition`: tensors that are sharded differently are not equal.
TrainingStep StepOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                    bool by_partition);

// Notes the cost of each way to shard the block of the tensor that is explained.
void NoteAlternatives(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                      Explanation& notes);

// Returns the cost of the tensors' sharding; nothing if the spec does not say enough.
std::optional<StepCost> CostOf(const WrittenTensors& drawn, const Training& training,
                               const Mesh& mesh);

}  // namespace shardinit
