// Reads a Hugging Face index, whose `weight_map` lists the file of each tensor.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/packed_text.h"
#include "formats/format.h"

namespace shardinit {

// The file of each tensor, in little memory.
class WeightMap {
 public:
  WeightMap() = default;
  WeightMap(WeightMap&&) = default;
  WeightMap& operator=(WeightMap&&) = default;

  // Adds a tensor. Names must ascend and have at most PackedText::kLongest bytes.
  void Add(std::string_view name, const std::string& file) {
    entries_.emplace_back(PackedText(name), &*files_.insert(file).first);
  }
  // Returns the file of a tensor, or null.
  const std::string* FileOf(std::string_view name) const;
  const std::vector<std::pair<PackedText, const std::string*>>& entries() const { return entries_; }
  const std::set<std::string>& files() const { return files_; }

 private:
  std::set<std::string> files_;
  std::vector<std::pair<PackedText, const std::string*>> entries_;
};

// How a format names the files of a model.
struct FileNames {
  std::string_view begin, end;  // what all names begin and end with
  // The names without `end` that loaders try in turn: `model.safetensors.index.json` is an index;
  // without it, `model.safetensors` is the whole model.
  std::span<const std::string_view> stems;
};

// The files of a folder that form one model.
struct ModelFiles {
  std::string index;  // the name of their index; empty if they have none
  std::optional<WeightMap> map = std::nullopt;
  std::vector<std::string> files = {};
};

// Returns whether a path is named like an index, such as `x.safetensors.index.fp16.json`.
bool IsIndex(std::string_view path, std::string_view end);

// Chooses the files of one model: the files that an index lists, or a file that loaders try, or
// else the only set of files. `index` is the index that the user named, or empty. Adds findings for
// all other files. Sets `contents->lost` if a file of the model is missing, or if loaders would
// load a whole file instead of the index's files. Returns nullopt if no file matches `names`.
// Throws Error: kUsage if there are several sets, kRefused if an index is damaged.
std::optional<ModelFiles> ChooseFiles(const std::string& folder, const FileNames& names,
                                      const std::string& index, Contents* contents);

// Adds a finding if a file is one of several but read alone, such as
// `x-00001-of-00002.safetensors`.
void CheckIfPart(const std::string& file, Contents* contents);

// Adds findings where the index and the files differ. Loaders use the index as a list of files, and
// load tensors from wherever they are. The config in `folder` may tie the head.
void CheckWeightMap(const std::string& folder, const ModelFiles& chosen, Contents* contents);

}  // namespace shardinit
