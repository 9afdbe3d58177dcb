// What a spec and the names in it say of a training step, for what a sharding costs
// (autoshard/). shardinit-auto(7) has what each name means.
#pragma once

#include <optional>
#include <vector>

#include "autoshard/cost.h"
#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

// Reports mistakes in `bandwidth` and `training`.
Training BindTraining(Building& building, const Mesh& mesh);

// The tensors of a spec as weights: equal ones of one TensorSpec are one weight.
struct TrainingStep {
  StepModel model;
  std::vector<size_t> weights;  // Of each tensor.
};

// `by_partition`: those that are cut in other ways are not equal.
TrainingStep StepOf(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                    bool by_partition, const ModelSpec& spec);

// What each way to cut the block of the first tensor whose path matches `notes->pattern` would
// cost.
void ExplainAlternatives(const WrittenTensors& drawn, const Training& training, const Mesh& mesh,
                         const ModelSpec& spec, Explanation* notes);

// What the sharding that the tensors have costs; none if the spec does not say enough.
std::optional<StepCost> CostOf(const WrittenTensors& drawn, const Training& training,
                               const Mesh& mesh, const ModelSpec& spec);

}  // namespace shardinit
