// A training step as far as a spec describes it. The cost of a sharding is computed from this;
// shardinit-auto(7) has the model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"

namespace shardinit {

enum class AxisUse {
  kBatch,        // Its ranks have different tokens.
  kExperts,      // Its ranks have different tokens, and some of its ranks may hold experts.
  kComputation,  // Its ranks share the work on the same tokens.
  kStages,       // Its ranks are pipeline stages: it sends nothing that a sharding changes.
};

struct StepAxis {
  int64_t size;
  AxisUse use;
  double bandwidth = 1;  // bytes a second that one rank sends over it
};

// A spec's statements about a step, apart from tensors.
struct Training {
  std::vector<StepAxis> axes;                  // the axes of the mesh
  double tokens = 1;                           // tokens of the ranks at one place on the batch axes
  double flops = 1;                            // operations a second of one rank
  double memory = 0;                           // bytes of one rank
  bool says_memory = false;                    // If false, `memory` is a default.
  std::optional<double> optimizer_bytes = {};  // for each element
  int64_t heads = 0, kv_heads = 0;             // 0 if not known
  int64_t experts_per_token = 0;               // 0 if not known
};

// The meaning of a dimension's name.
enum class DimensionName { kNone, kHeads, kHidden, kVocabulary, kExperts };

// Equal tensors, such as those of all layers.
struct StepWeight {
  // These are as in the spec.
  Shape shape;
  int64_t element_bytes;
  std::vector<DimensionName> names;    // one per dimension
  std::vector<size_t> in, out, batch;  // dimensions; `in` and `out` are empty for vectors
  bool is_table = false;               // A table is looked up by rows.
  // For one of many experts: the axes whose index decides which ranks have the tensor.
  std::vector<size_t> pinned = {};

  // Recognize() fills in these.
  bool is_list = false;      // The weight is a list of experts: dimension 0 counts tensors, the
                             // others are a tensor's.
  double count = 0;          // number of tensors, or of such lists
  std::vector<double> held;  // how many of them a rank of each stage has
  double share = 1;          // How many times a step's tokens pass one of them, or one layer of it.
  double layers = 1;         // layers in one tensor
  bool is_in_layer = false;  // If false, tokens pass it once in a step.
  double inputs = 0, outputs = 0;  // widths of a matrix's activations
  double logits = 0;               // width of the logits, if a table also makes them
  double operations = 0;           // multiplications per token that passes
  int block = -1;
  int experts = -1;        // the dimension of experts, or -1
  double route_sends = 0;  // elements sent per token to its experts and back
  // For each dimension along which computation axes may split the matrix: the elements per token
  // that they then exchange. It is below 0 if they may not split it.
  std::vector<double> split_sends;
  // For each dimension: how many matrices lie in it one behind the other, as gate and up do.
  std::vector<int64_t> fused;

  bool is_matrix() const { return !in.empty() && !out.empty(); }
  // Returns the number of segments into which an axis shards the dimension that it splits. All that
  // heads produce may also lie together, head by head.
  int64_t SegmentsOf(size_t d) const { return names[d] == DimensionName::kHeads ? 1 : fused[d]; }
  bool MaySplit(size_t d, int64_t segments) const {
    return split_sends[d] >= 0 && (segments == fused[d] || segments == SegmentsOf(d));
  }
  bool MaySplit() const;  // along any dimension
};

// Weights that axes with shared work shard together.
struct StepBlock {
  std::string_view kind;  // in the words of shardinit-auto(7)
  int64_t units = 0;      // Axes that split the block divide this number of whole heads; 0 if any
                          // axes do.
  int64_t experts = 1;
  std::vector<size_t> weights = {};
};

struct StepModel {
  Training training;
  std::vector<StepWeight> weights;
  std::vector<StepBlock> blocks;
  // The number of layers of each pipeline stage, without stages that have no more of anything than
  // another one. There is one stage if there is no pipeline.
  std::vector<double> layers = {1};
  double width = 0,
         width_bytes = 0;  // elements and their size that a layer hands on, for each token
};

// One tensor of a weight.
struct StepTensor {
  std::string_view path;
  size_t weight;
  std::vector<size_t> stages = {};  // the stages whose ranks have it; empty for all
};

// Returns the number of the expert whose tensor has this path, or -1.
int64_t ExpertOf(std::string_view path);

// Returns what a name in `axes` of a spec means.
DimensionName DimensionNamed(std::string_view name);

// Calls `visit` with each tensor of a step, in the same order each time: there may be millions, so
// nobody has a list of them.
using StepTensors = std::function<void(const std::function<void(const StepTensor&)>& visit)>;

// Fills in what is recognized: blocks, and how often tokens pass weights.
void Recognize(const StepTensors& for_each_tensor, size_t stages, StepModel* model);

// A fact that is missing to compute a step's cost, or to choose. The functions return nothing if
// nothing is missing.
struct Missing {
  std::string what, hint;
};
std::optional<Missing> MissingForCost(const StepModel& model);
std::optional<Missing> MissingForChoice(const StepModel& model);

}  // namespace shardinit
