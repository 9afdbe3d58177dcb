// Reads a training step from a spec and its names, to compute the cost of a sharding (autoshard/).
// shardinit-auto(7) explains each name.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autoshard/cost.h"
#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

// The part of a rank's memory that a choice may use. The rest is for memory that is not counted:
// buffers of collectives and kernels, and fragmentation.
inline constexpr double kCountedMemory = 0.95;

// Reports errors in `bandwidth` and `training`.
Training BindTraining(Building& building, const Mesh& mesh);

// The tensors of a spec as weights. Equal tensors of one TensorSpec form one weight.
struct TrainingStep {
  StepModel model;
  std::vector<uint32_t> weights;  // index of each tensor's weight
};

// `drawn` must have fans. `by_partition`: tensors that are sharded differently are not equal.
TrainingStep StepOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                    bool by_partition);

// Notes the cost of each way to shard the block of the explained tensor.
void NoteAlternatives(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                      Explanation& notes);

// Returns the cost of the tensors' sharding, or nothing if the spec has too few facts.
std::optional<StepCost> CostOf(const WrittenTensors& drawn, const Training& training,
                               const Mesh& mesh);

}  // namespace shardinit
