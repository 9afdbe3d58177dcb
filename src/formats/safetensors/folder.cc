// Reads a folder of safetensors files, whoever wrote them.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/format.h"
#include "formats/safetensors/file.h"
#include "formats/weight_map.h"
#include "report/text.h"

namespace shardinit {
namespace safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json", kWholeFile[] = "model.safetensors";

void AddFile(const std::string& path, const std::string& file, Contents* contents) {
  for (Entry& entry : ReadHeader(path)) {
    Holding& holding = contents->tensors[entry.name];
    if (holding.pieces.empty()) {
      holding.file = file;
      holding.dtype = entry.dtype;
      holding.shape.resize(entry.box.shape.size());
    } else if (holding.dtype != entry.dtype || holding.shape.size() != entry.box.shape.size()) {
      throw Error(
          ExitCode::kRefused,
          fmt::format("{} is {} {} in `{}`, but {} {} in `{}`", Quote(entry.name),
                      Escape(holding.dtype), InShape(holding.shape), holding.pieces.front().file,
                      Escape(entry.dtype), InShape(entry.box.shape), path));
    }
    for (size_t d = 0; d < holding.shape.size(); ++d) {
      int64_t end = 0;
      if (__builtin_add_overflow(entry.box.offset[d], entry.box.shape[d], &end)) end = INT64_MAX;
      holding.shape[d] = std::max(holding.shape[d], end);
    }
    holding.pieces.push_back({std::move(entry.box), path, entry.offset});
  }
}

void RequireAllWhole(const Contents& contents, const std::string& path) {
  for (const auto& [name, holding] : contents.tensors) RequireWhole(name, holding, path);
}

std::optional<Contents> ReadFolder(const std::string& folder) {
  std::vector<std::string> files = NamesIn(folder);
  std::erase_if(files, [](const std::string& name) { return !name.ends_with(kSuffix); });
  if (files.empty()) return std::nullopt;
  Contents contents;
  const auto index = ReadWeightMap(folder, kIndexFile);
  KeepListed(index, kIndexFile, kWholeFile, &files, &contents);
  for (const std::string& file : files) {
    AddFile(fmt::format("{}/{}", folder, file), file, &contents);
  }
  RequireAllWhole(contents, folder);
  CheckWeightMap(index, kIndexFile, &contents);
  return contents;
}

Contents ReadOneFile(const std::string& path) {
  Contents contents;
  AddFile(path, NameOf(path), &contents);
  RequireAllWhole(contents, path);
  return contents;
}

}  // namespace
}  // namespace safetensors

extern const FormatReader kSafetensorsReader = {
    .what = "safetensors files",
    .dtype = &ForeignNames::safetensors,
    .read = safetensors::ReadFolder,
    .read_file = safetensors::ReadOneFile,
};

}  // namespace shardinit
