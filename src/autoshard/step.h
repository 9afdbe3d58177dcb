// A training step as far as a spec says it: what the cost of a sharding is computed from.
// shardinit-auto(7) has the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"

namespace shardinit {

enum class AxisUse {
  kBatch,        // Its ranks have different tokens.
  kExperts,      // The same, and experts may be on some of them.
  kComputation,  // Its ranks share the work on the same tokens.
  kStages,       // Of a pipeline: sends nothing that a sharding changes.
};

struct StepAxis {
  int64_t size;
  AxisUse use;
  double bandwidth = 1;  // Bytes a second that one rank sends over it.
};

// What is said of a step, apart from tensors.
struct Training {
  std::vector<StepAxis> axes;  // Of the mesh.
  double tokens = 1;           // That the ranks of one place on the batch axes have.
  double flops = 1;            // Operations a second of one rank.
  double memory = 0;           // Of one rank.
  bool says_memory = false;    // Else it is a default.
  std::optional<double> optimizer_bytes = {};  // For each element.
  int64_t heads = 0, kv_heads = 0;             // 0: not known.
  int64_t experts_per_token = 0;               // 0: not known.
};

// What a dimension is, by its name.
enum class DimensionName { kNone, kHeads, kHidden, kVocabulary, kExperts };

// Equal tensors: those of all layers.
struct StepWeight {
  // As the spec has them.
  Shape shape;
  int64_t element_bytes;
  std::vector<DimensionName> names;    // Of each dimension.
  std::vector<size_t> in, out, batch;  // Dimensions; of a vector none are in or out.
  bool is_table = false;               // Looked up by rows.
  // Axes that say by their index on which ranks a tensor is that is one of many experts.
  std::vector<size_t> pinned = {};

  // As they are recognized.
  bool is_list = false;      // Of experts: dimension 0 counts tensors, the others are a tensor's.
  double count = 0;          // Of tensors, or of such lists.
  std::vector<double> held;  // How many of them a rank of each stage has.
  double share = 1;          // Of the tokens of a step that pass one of them, or one layer of it.
  double layers = 1;         // In one tensor.
  bool is_in_layer = false;  // Else it is passed once in a step.
  double inputs = 0, outputs = 0;  // Widths of the activations of a matrix.
  double logits = 0;               // Of a table that makes them, too.
  double operations = 0;           // Multiplications for each token that passes.
  int block = -1;
  int experts = -1;        // The dimension of experts.
  double route_sends = 0;  // Elements for each token that goes to its experts and back.
  // Of each dimension along which computation axes may split the matrix: elements for each token
  // that they exchange then; below 0: they may not.
  std::vector<double> split_sends;
  // Of each dimension how many matrices lie in it one behind the other, as gate and up do.
  std::vector<int64_t> fused;

  bool is_matrix() const { return !in.empty() && !out.empty(); }
  // In how many segments an axis that splits the dimension cuts it. All that heads produce may also
  // lie together, head by head.
  int64_t SegmentsOf(size_t d) const { return names[d] == DimensionName::kHeads ? 1 : fused[d]; }
  bool MaySplit(size_t d, int64_t segments) const {
    return split_sends[d] >= 0 && (segments == fused[d] || segments == SegmentsOf(d));
  }
  bool MaySplit() const;  // Along any dimension.
};

// Weights that are cut together over the axes that share their work.
struct StepBlock {
  std::string_view kind;  // In the words of shardinit-auto(7).
  int64_t units = 0;      // Whole heads: axes that split the block divide their number. 0: any do.
  int64_t experts = 1;
  std::vector<size_t> weights = {};
};

struct StepModel {
  Training training;
  std::vector<StepWeight> weights;
  std::vector<StepBlock> blocks;
  // Of each stage of a pipeline, if no other has as many of all tensors. One if there is none.
  std::vector<double> layers = {1};
  double width = 0,
         width_bytes = 0;  // What a layer hands on, for each token: elements and their size.
};

// One tensor of a weight.
struct StepTensor {
  std::string_view path;
  size_t weight;
  std::vector<size_t> stages = {};  // Whose ranks have it; empty: all.
};

// The number of the one expert that a tensor is of, by its path; -1: there is none.
int64_t ExpertOf(std::string_view path);

// What a name in `axes` of a spec says of a dimension.
DimensionName DimensionNamed(std::string_view name);

// Fills in what is recognized: blocks, and how often weights are passed.
void Recognize(const std::vector<StepTensor>& tensors, size_t stages, StepModel* model);

// Why nobody can say what a step costs, or choose; empty: nothing is missing.
struct Missing {
  std::string what, hint;
};
std::optional<Missing> MissingForCost(const StepModel& model);
std::optional<Missing> MissingForChoice(const StepModel& model);

}  // namespace shardinit
