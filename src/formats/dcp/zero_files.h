// Finds the files of DeepSpeed's ranks in a folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/dcp/saved.h"

namespace shardinit::dcp {

// The model's file if all ranks share it.
inline constexpr char kZeroModel[] = "mp_rank_00_model_states.pt";
inline constexpr std::string_view kZeroModelEnd = "_model_states.pt",
                                  kZeroOptimizerEnd = "_optim_states.pt";

// Throws Error (kRefused) unless `is`.
void RequireZero(bool is, const std::string& folder, const std::string& what,
                 const std::string& hint = "convert it with DeepSpeed's own scripts");

// Returns whether a folder can have the name, without leading elsewhere.
bool IsFolderName(std::string_view name);

// The paths of files by rank. A file for all ranks has the rank -1.
using RankFiles = std::map<int64_t, std::string>;
struct ZeroFiles {
  RankFiles models, optimizers;
  std::map<std::pair<int64_t, int64_t>, std::string> experts;  // by MoE layer and expert
  RankFiles expert_optimizers;                                 // of runs without ZeRO
  bool is_universal = false;
};

// Returns nullopt if the folder has no files of DeepSpeed. Throws Error (kRefused) for files of
// tensor or pipeline parallelism.
std::optional<ZeroFiles> FindZeroFiles(const std::string& folder);

// Returns the folder of a run's newest checkpoint, which `latest` names, or else the folder itself.
std::string FindTag(const std::string& folder);

// The experts of all ranks, in the type of the model.
struct ZeroExperts {
  std::map<std::string, TensorInFolder> tensors;
  std::map<std::string, int64_t> counts;  // the experts of a layer, by the layer's name
};
// Reads the files of experts. `counts` is the number of experts in each layer: the `num_experts` of
// the model's file, or null.
ZeroExperts ReadExperts(const std::string& folder, const ZeroFiles& files, const Value* counts);

// Returns the name in the whole model of a tensor that one of `degree` expert-parallel ranks has.
// Throws Error (kRefused) if it is not an expert's.
std::string ExpertName(const std::string& folder, const ZeroExperts& experts,
                       const std::string& name, int64_t rank, int64_t degree);

}  // namespace shardinit::dcp
