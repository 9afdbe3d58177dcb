// Reads untrusted safetensors files and folders.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/format.h"
#include "formats/parts.h"
#include "formats/safetensors/file.h"
#include "formats/weight_map.h"
#include "report/text.h"

namespace shardinit {
namespace safetensors {
namespace {

constexpr std::string_view kStems[] = {"model", "diffusion_pytorch_model"};
constexpr FileNames kNames = {.begin = "", .end = ".safetensors", .stems = kStems};

// A file's part of a tensor.
struct Part {
  std::string file;  // the file's name
  Entry entry;
};
using Parts = std::map<std::string, std::vector<Part>>;  // by the tensor's name

// Adds a file's tensors and metadata. If files differ in a metadata entry, keeps the first and adds
// a finding.
void AddFile(const std::string& path, const std::string& file, Parts* parts, Contents* contents) {
  Metadata metadata;
  std::vector<Entry> entries = ReadHeader(path, &metadata);
  for (auto& [key, text] : metadata) {
    if (key == "format" || key.starts_with("DCP_")) continue;  // written anew
    const auto [known, is_new] = contents->metadata.emplace(key, text);
    if (is_new || known->second == text) continue;
    contents->findings.Add(
        {file, "",
         fmt::format("has another {} in its metadata than earlier files: a copy gets the first one",
                     Quote(key))});
  }
  for (Entry& entry : entries) {
    std::string name = entry.name;
    (*parts)[std::move(name)].push_back({file, std::move(entry)});
  }
}

// Keeps the copy of a tensor that the index lists, if several files have all of it.
void KeepListedCopy(const ModelFiles& chosen, const std::string& name, std::vector<Part>* parts,
                    Contents* contents) {
  const std::string* const file = chosen.map ? chosen.map->FileOf(name) : nullptr;
  if (parts->size() < 2 || file == nullptr) return;
  const std::string& listed = *file;
  const auto is_listed = [&](const Part& part) { return part.file == listed; };
  const auto is_part = [](const Part& part) {
    return std::ranges::any_of(part.entry.box.offset, [](int64_t at) { return at != 0; });
  };
  if (std::ranges::none_of(*parts, is_listed) || std::ranges::any_of(*parts, is_part)) return;
  std::erase_if(*parts, [&](const Part& part) {
    if (is_listed(part)) return false;
    contents->findings.Add(
        {part.file, Escape(name),
         fmt::format("is not read: `{}` places it in {}", chosen.index, Quote(listed))});
    return true;
  });
}

// Assembles a tensor from its parts in files.
void AddTensor(const std::string& folder, const std::string& name, std::vector<Part> parts,
               Contents* contents) {
  TensorInFolder& holding = contents->tensors[name];
  for (auto& [file, entry] : parts) {
    const std::string path = folder.empty() ? file : fmt::format("{}/{}", folder, file);
    if (holding.pieces.empty()) {
      holding.file = file;
      holding.dtype = entry.dtype;
      holding.shape.resize(entry.box.shape.size());
    } else if (holding.dtype != entry.dtype || holding.shape.size() != entry.box.shape.size()) {
      throw Error(
          ExitCode::kRefused,
          fmt::format("{} is {} {} in `{}`, but {} {} in `{}`", Quote(name), Escape(holding.dtype),
                      InShape(holding.shape), holding.pieces.front().file, Escape(entry.dtype),
                      InShape(entry.box.shape), path));
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

// Keeps the tensors of the model, or of the requested part.
void KeepModel(const std::string& path, const std::string& part, Contents* contents) {
  const bool may_hold_state = std::ranges::any_of(contents->tensors, [](const auto& tensor) {
    return MayHoldState(tensor.first, tensor.second.shape,
                        FindDType(&ForeignNames::safetensors, tensor.second.dtype));
  });
  if (part.empty() && !may_hold_state) return;
  std::vector<PartEntry> entries;
  for (const auto& [name, holding] : contents->tensors) {
    entries.push_back(TensorEntry(SplitAtDots(name), holding.shape,
                                  FindDType(&ForeignNames::safetensors, holding.dtype)));
  }
  ModelChoice choice = ChooseModel(entries, KeyOrigin::kPlainDots, part, path);
  contents->part = std::move(choice.part);
  contents->others = std::move(choice.others);
  const std::set<size_t> chosen(choice.entries.begin(), choice.entries.end());
  size_t number = 0;
  std::erase_if(contents->tensors, [&](const auto&) { return !chosen.contains(number++); });
}

std::optional<Contents> ReadSet(const std::string& folder, const std::string& index,
                                const std::string& part) {
  Contents contents;
  auto chosen = ChooseFiles(folder, kNames, index, &contents);
  if (!chosen) return std::nullopt;
  Parts parts;
  for (const std::string& file : chosen->files) {
    AddFile(fmt::format("{}/{}", folder, file), file, &parts, &contents);
  }
  // Frees each part, because a folder may have hundreds of thousands.
  while (!parts.empty()) {
    auto node = parts.extract(parts.begin());
    KeepListedCopy(*chosen, node.key(), &node.mapped(), &contents);
    AddTensor(folder, node.key(), std::move(node.mapped()), &contents);
  }
  RequireAllWhole(contents, folder);
  CheckWeightMap(folder, *chosen, &contents);
  chosen->map.reset();  // its memory is needed for what follows
  KeepModel(folder, part, &contents);
  return contents;
}

std::optional<Contents> ReadFolder(const std::string& folder, const std::string& part) {
  return ReadSet(folder, "", part);
}

Contents ReadOneFile(const std::string& path, const std::string& part) {
  if (IsIndex(path, kNames.end)) return *ReadSet(FolderOf(path), NameOf(path), part);
  Contents contents;
  Parts parts;
  AddFile(path, path, &parts, &contents);
  for (auto& [name, of] : parts) {
    AddTensor("", name, std::move(of), &contents);
    contents.tensors[name].file = NameOf(path);
  }
  RequireAllWhole(contents, path);
  KeepModel(path, part, &contents);
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
