// The index of Hugging Face's folders, which says in which file each tensor is: `weight_map`.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace shardinit {

// The file of each tensor. None: there is no index.
using WeightMap = std::optional<std::map<std::string, std::string>>;

// How a format names the files of a model.
struct FileNames {
  std::string_view begin, end;  // what all names begin and end with
  // The names without `end` that loaders try in turn: `model.safetensors.index.json` is an index,
  // and without it `model.safetensors` is the whole model.
  std::span<const std::string_view> stems;
};

// The files of a folder that make one model.
struct ModelFiles {
  std::string index;  // the name of their index; empty: they have none
  WeightMap map = std::nullopt;
  std::vector<std::string> files = {};
};

// Returns whether a path has the name of an index, such as `x.safetensors.index.fp16.json`.
bool IsIndex(std::string_view path, std::string_view end);

// Chooses the files of one model: the files that an index lists, or a file that loaders take, or
// else the only set that there is. `index` is the one that the user named; empty: none. The other
// files become findings. Notes what is lost if a file of the model is missing, and where loaders
// would take a whole file instead of the files of the index. Throws Error: kUsage if there are
// several sets, kRefused if an index is damaged. None: there are no such files.
std::optional<ModelFiles> ChooseFiles(const std::string& folder, const FileNames& names,
                                      const std::string& index, Contents* contents);

// Finds that a file that is read alone is one of several, as `x-00001-of-00002.safetensors` is.
void CheckIfPart(const std::string& file, Contents* contents);

// Finds where the index and the files differ. Loaders take the index as a list of files, and
// tensors from wherever they are. `folder` has the config that may tie the head.
void CheckWeightMap(const std::string& folder, const ModelFiles& chosen, Contents* contents);

}  // namespace shardinit
