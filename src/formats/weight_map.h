// The index of Hugging Face's folders, which says in which file each tensor is: `weight_map`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/format.h"

namespace shardinit {

// The file of each tensor. None: the folder has no index.
using WeightMap = std::optional<std::map<std::string, std::string>>;

// Throws Error (kRefused) if the index is damaged.
WeightMap ReadWeightMap(const std::string& folder, const std::string& index);

// Leaves those of the files that make one model: all that the index lists, or `whole`, or all
// files. The others become findings. Notes what is lost if a file of the model is missing, and
// where loaders would take `whole` instead of the files of the index.
void KeepListed(const WeightMap& map, const std::string& index, const std::string& whole,
                std::vector<std::string>* files, Contents* contents);

// Finds where the index and the files differ. Loaders take the index as a list of files, and
// tensors from wherever they are.
void CheckWeightMap(const WeightMap& map, const std::string& index, Contents* contents);

}  // namespace shardinit
