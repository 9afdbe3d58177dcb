// Reads a folder of safetensors files, whoever wrote them.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/safetensors/file.h"

namespace shardinit {
namespace safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kIndexLimit = size_t{1} << 30;

// Checks the index, since loaders look for a tensor in the file that it names.
void CheckIndex(const std::string& folder, Contents* contents) {
  std::string text;
  if (!ReadFileIfExists(folder + "/" + kIndexFile, kIndexLimit, &text)) return;
  const nlohmann::json index = ParseJson(text, kIndexFile);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no `weight_map`", kIndexFile));
  }
  const auto& map = index["weight_map"];
  for (const auto& [name, file] : map.items()) {
    const auto held = contents->tensors.find(name);
    if (held == contents->tensors.end() || file != held->second.file) {
      contents->findings.Add(
          {kIndexFile, Escape(name), fmt::format("is not in {}", Escape(file.dump()))});
    }
  }
  for (const auto& [name, holding] : contents->tensors) {
    if (!map.contains(name)) contents->findings.Add({kIndexFile, Escape(name), "is not listed"});
  }
}

std::optional<Contents> ReadFolder(const std::string& folder) {
  std::vector<std::string> files = NamesIn(folder);
  std::erase_if(files, [](const std::string& name) { return !name.ends_with(kSuffix); });
  if (files.empty()) return std::nullopt;
  Contents contents;
  for (const std::string& file : files) {
    const std::string path = folder + "/" + file;
    for (Entry& entry : ReadHeader(path)) {
      Holding& holding = contents.tensors[entry.name];
      if (holding.pieces.empty()) {
        holding.file = file;
        holding.dtype = entry.dtype;
        holding.shape.resize(entry.box.shape.size());
      } else if (holding.dtype != entry.dtype || holding.shape.size() != entry.box.shape.size()) {
        throw Error(ExitCode::kRefused, fmt::format("{} is in `{}` and, otherwise, in `{}`",
                                                    Quote(entry.name), holding.file, file));
      }
      for (size_t d = 0; d < holding.shape.size(); ++d) {
        int64_t end = 0;
        if (__builtin_add_overflow(entry.box.offset[d], entry.box.shape[d], &end)) end = INT64_MAX;
        holding.shape[d] = std::max(holding.shape[d], end);
      }
      holding.pieces.push_back({std::move(entry.box), path, entry.offset});
    }
  }
  for (const auto& [name, holding] : contents.tensors) RequireWhole(name, holding);
  CheckIndex(folder, &contents);
  return contents;
}

}  // namespace
}  // namespace safetensors

extern const FormatReader kSafetensorsReader = {
    .what = "safetensors files",
    .name_of = [](DType dtype) { return ForeignNamesOf(dtype).safetensors; },
    .read = safetensors::ReadFolder,
};

}  // namespace shardinit
