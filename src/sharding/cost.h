// What a sharding costs: the bytes that a training step sends over each mesh axis, and how long
// that takes. shardinit-auto(7) has the formulas; what is computed here is what stands there.
//
// A model of the step, not a measurement: it knows weights by shape and logical axes, no program.
// Everything is a sum over weights, but for one thing that they decide together: of each logical
// axis, which computation axes cut activations along it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/partition.h"
#include "tensor/box.h"

namespace shardinit {

enum class AxisUse {
  kBatch,        // Its ranks have different tokens: weights are gathered, gradients added up.
  kComputation,  // Its ranks share the work on the same tokens.
  kOther,        // Stages of a pipeline: sends nothing that a sharding changes.
};

struct StepAxis {
  int64_t size;
  AxisUse use;
  double bandwidth;  // Bytes a second that one rank sends over it.
};

// What a dimension of a weight is to the activations that pass it.
enum class DimensionRole {
  kContracted,   // Summed over: the input of a matrix.
  kProduced,     // Its output.
  kExperts,      // Of matrices of which each token passes some.
  kElementwise,  // Of a vector that activations meet element by element.
  kPlain,        // Nothing that is known by name: gathered where it is cut.
};

// Equal tensors: those of all layers.
struct StepWeight {
  Shape shape;
  int64_t element_bytes;
  double count = 1;                  // Of tensors; of those pinned to some ranks a part.
  double runs = 1;                   // How often all tokens pass through one of them.
  std::vector<int> logical;          // Of each dimension the number of its logical axis; -1: none.
  std::vector<DimensionRole> roles;  // kPlain where there is none.
};

struct StepModel {
  std::vector<StepAxis> axes;  // Of the mesh.
  double tokens;               // Of one step, that the ranks of one place on the batch axes have.
  std::vector<StepWeight> weights;
  int logical_axes = 0;
};

// Of each mesh axis the dimension that it cuts, or -1.
using AxisCuts = std::vector<int>;

AxisCuts CutsOf(const PartitionSpec& partition, const Mesh& mesh);
// On one dimension computation axes are the major ones, as of FSDP within tensor parallelism.
PartitionSpec PartitionOf(const AxisCuts& cuts, size_t dimensions, const StepModel& model);

// Of a rank that holds most.
struct StepCost {
  double padding = 0;         // Bytes that equal shards would have beyond the tensors.
  double seconds = 0;         // Of communication in a step.
  double rank_bytes = 0;      // Of weights.
  std::vector<double> bytes;  // That it sends in a step over each axis of the mesh.

  // No padding before least padding, then seconds.
  bool IsBelow(const StepCost& other) const;
};

// All tensors of a weight, as far as it alone decides.
StepCost CostAlone(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts);
// What is sent over a computation axis because the activations along dimension d are cut by it
// (`is_cut`) or are not, and the weight is otherwise.
double Disagreement(const StepModel& model, const StepWeight& weight, const AxisCuts& cuts,
                    size_t dimension, size_t axis, bool is_cut);
// Of all weights, with activations cut as suits them best.
StepCost CostOf(const StepModel& model, const std::vector<AxisCuts>& cuts);

double Seconds(const StepModel& model, const std::vector<double>& bytes);

}  // namespace shardinit
