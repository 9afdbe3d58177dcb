// Describes a training step, as far as a spec defines it, to compute the cost of a sharding.
// shardinit-auto(7) explains the model.
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
  kBatch,        // its ranks have different tokens
  kExperts,      // its ranks have different tokens, and some may hold experts
  kComputation,  // its ranks share the work on the same tokens
  kStages,       // its ranks are pipeline stages; its traffic does not depend on the sharding
};

struct StepAxis {
  int64_t size;
  AxisUse use;
  double bandwidth = 1;  // bytes per second that one rank sends over it
};

// A spec's statements about a step, apart from tensors.
struct Training {
  std::vector<StepAxis> axes;                  // the axes of the mesh
  double tokens = 1;                           // tokens of the ranks at one place on the batch axes
  double flops = 1;                            // operations per second of one rank
  double memory = 0;                           // bytes of one rank
  bool says_memory = false;                    // if false, `memory` is a default
  std::optional<double> optimizer_bytes = {};  // per element
  int64_t heads = 0, kv_heads = 0;             // 0 if unknown
  int64_t experts_per_token = 0;               // 0 if unknown
};

// The meaning of a dimension's name.
enum class DimensionName { kNone, kHeads, kHidden, kVocabulary, kExperts };

// Equal tensors, such as one weight of all layers.
struct StepWeight {
  // These come from the spec.
  Shape shape;
  int64_t element_bytes;
  std::vector<DimensionName> names;    // one per dimension
  std::vector<size_t> in, out, batch;  // dimensions; `in` and `out` are empty for vectors
  bool is_table = false;               // looked up by rows
  // For one of many experts: the axes whose index decides which ranks hold the tensor.
  std::vector<size_t> pinned = {};

  // Recognize() fills in these.
  bool is_list = false;      // a list of experts: dimension 0 counts tensors, others are a tensor's
  double count = 0;          // number of tensors, or of such lists
  std::vector<double> held;  // for each stage: how many of them one rank has
  double share = 1;          // passes of a step's tokens through one of them, or one layer of it
  double layers = 1;         // layers in one tensor
  bool is_in_layer = false;  // if false, tokens pass it once per step
  double inputs = 0, outputs = 0;  // widths of a matrix's activations
  double logits = 0;               // width of the logits, if a table also makes them
  double operations = 0;           // multiplications per passing token
  int block = -1;
  int experts = -1;        // the dimension of experts, or -1
  double route_sends = 0;  // elements sent per token to its experts and back
  // For each dimension along which computation axes may split the matrix: the elements per token
  // that they then exchange. Negative if they may not split it.
  std::vector<double> split_sends;
  // For each dimension: the number of matrices concatenated along it, such as gate and up.
  std::vector<int64_t> fused;

  bool is_matrix() const { return !in.empty() && !out.empty(); }
  // Returns the number of segments into which an axis shards the dimension that it splits. The
  // outputs of heads may also be stored head by head.
  int64_t SegmentsOf(size_t d) const { return names[d] == DimensionName::kHeads ? 1 : fused[d]; }
  bool MaySplit(size_t d, int64_t segments) const {
    return split_sends[d] >= 0 && (segments == fused[d] || segments == SegmentsOf(d));
  }
  bool MaySplit() const;  // along any dimension
};

// Weights that axes with shared work shard together.
struct StepBlock {
  std::string_view kind;  // in the terms of shardinit-auto(7)
  int64_t units = 0;      // number of heads; axes that split the block must divide it; 0: no limit
  int64_t experts = 1;
  std::vector<size_t> weights = {};
};

struct StepModel {
  Training training;
  std::vector<StepWeight> weights;
  std::vector<StepBlock> blocks;
  // The number of layers of each pipeline stage. Omits stages that do not exceed another stage in
  // anything. Without a pipeline there is one stage.
  std::vector<double> layers = {1};
  double width = 0,
         width_bytes = 0;  // elements that a layer passes on per token, and their size
};

// One tensor of a weight.
struct StepTensor {
  std::string_view path;
  size_t weight;
  std::vector<size_t> stages = {};  // the stages whose ranks have it; empty: all
};

// Returns the number of the expert whose tensor has this path, or -1.
int64_t ExpertOf(std::string_view path);

// Returns the meaning of a name in `axes` of a spec.
DimensionName DimensionNamed(std::string_view name);

// Calls `visit` with each tensor of a step, always in the same order. There may be millions of
// tensors, so they are never listed.
using StepTensors = std::function<void(const std::function<void(const StepTensor&)>& visit)>;

// Fills in the recognized fields: blocks, and how often tokens pass weights.
void Recognize(const StepTensors& for_each_tensor, size_t stages, StepModel* model);

// A fact that is needed to compute a step's cost or to choose. The functions return nullopt if no
// fact is missing.
struct Missing {
  std::string what, hint;
};
std::optional<Missing> MissingForCost(const StepModel& model);
std::optional<Missing> MissingForChoice(const StepModel& model);

}  // namespace shardinit
