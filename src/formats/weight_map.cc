#include "formats/weight_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/input.h"
#include "formats/name_rows.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr size_t kIndexLimit = size_t{1} << 30, kConfigLimit = 16 << 20;

bool Has(const std::vector<std::string>& files, const std::string& file) {
  return std::find(files.begin(), files.end(), file) != files.end();
}

void NoteMissing(std::string what, Contents* contents) {
  if (contents->lost.empty()) contents->lost = std::move(what);
}

constexpr std::string_view kOf = "-of-";

// A file that is named as one of several, such as `x-00001-of-00003.safetensors`.
struct NumberedPart {
  std::string head, tail;  // its name before and after the number: `x-` and `-of-00003.safetensors`
  int64_t number = 0, count = 0;
};

std::optional<NumberedPart> NumberedPartOf(const std::string& file) {
  constexpr size_t kDigits = 5;
  const size_t of = file.rfind(kOf);
  if (of == file.npos || of < kDigits + 1) return std::nullopt;
  const std::string_view name = file;
  const auto number = ParseNumber<int64_t>(name.substr(of - kDigits, kDigits));
  const auto count = ParseNumber<int64_t>(name.substr(of + kOf.size(), kDigits));
  NumberedPart part = {file.substr(0, of - kDigits), file.substr(of)};
  if (!number || !count || !part.head.ends_with('-')) return std::nullopt;
  part.number = *number, part.count = *count;
  return part;
}

// Sets `contents->lost` if a numbered file is missing.
void RequireAllParts(const std::vector<std::string>& files, Contents* contents) {
  for (const std::string& file : files) {
    const auto known = NumberedPartOf(file);
    for (int64_t part = 1; known && part <= known->count; ++part) {
      const std::string other = fmt::format("{}{:05}{}", known->head, part, known->tail);
      if (Has(files, other)) continue;
      return NoteMissing(fmt::format("`{}` is missing, but `{}` exists", other, file), contents);
    }
  }
}

// Returns a pattern that all files of one save match. Their names differ only in numbers, but not
// in the number of parts. (torch.distributed.checkpoint counts the parts of each rank.)
std::string PatternOf(const std::string& file) {
  constexpr std::string_view kSeparators = "-_.";
  const auto part = NumberedPartOf(file);
  if (!part || file.starts_with("shard-")) return WithoutNumbers(file, kSeparators);
  return WithoutNumbers(part->head, kSeparators) + "*" + part->tail;
}

bool IsAdapter(std::string_view file) { return file.starts_with("adapter_"); }

// Throws Error (kRefused) if the index is damaged.
WeightMap ReadWeightMap(const std::string& folder, const std::string& index) {
  const std::string path = folder + "/" + index;
  const nlohmann::json in = ParseJson(ReadInput(path, kIndexLimit), path);
  if (!in.is_object() || !in.contains("weight_map") || !in["weight_map"].is_object()) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no `weight_map`", path));
  }
  WeightMap map;
  for (const auto& [name, file] : in["weight_map"].items()) {
    if (!file.is_string()) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}`: the file of {} is not text", path, Quote(name)));
    }
    if (name.size() > PackedText::kLongest) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}`: a name has {} bytes, but at most {} are read", path,
                              name.size(), PackedText::kLongest));
    }
    map.Add(name, file.get_ref<const std::string&>());
  }
  return map;
}

// Keeps the files of the model, and adds a finding for each other file.
void Keep(const std::set<std::string>& listed, const std::string& why,
          std::vector<std::string>* files, Contents* contents) {
  std::erase_if(*files, [&](const std::string& file) {
    if (listed.contains(file)) return false;
    contents->findings.Add({file, "",
                            fmt::format("is not part of the model: {}{}", why,
                                        IsAdapter(file) ? ", and adapters are not merged" : "")});
    return true;
  });
}

// Reads an index and keeps the files that it lists.
void TakeListed(const std::string& folder, const std::string& index, ModelFiles* chosen,
                Contents* contents) {
  chosen->index = index;
  chosen->map = ReadWeightMap(folder, index);
  const std::set<std::string>& listed = chosen->map->files();
  for (const std::string& file : listed) {
    if (Has(chosen->files, file)) continue;
    NoteMissing(fmt::format("`{}` lists `{}`, which is missing", index, Escape(file)), contents);
  }
  Keep(listed, fmt::format("`{}` does not list it", index), &chosen->files, contents);
}

// Chooses the only set of files, if no index or file has a name that loaders try.
void TakeOnlySet(const std::string& folder, const std::vector<std::string>& indexes,
                 ModelFiles* chosen, Contents* contents) {
  std::set<std::string> free(chosen->files.begin(), chosen->files.end());
  for (const std::string& index : indexes) {
    const WeightMap map = ReadWeightMap(folder, index);
    for (const std::string& file : map.files()) free.erase(file);
  }
  std::map<std::string, std::vector<std::string>> sets;
  for (const std::string& file : free) sets[PatternOf(file)].push_back(file);
  if (indexes.size() + sets.size() <= 1) {
    return indexes.empty() ? RequireAllParts(chosen->files, contents)
                           : TakeListed(folder, indexes.front(), chosen, contents);
  }
  std::vector<std::string> named, alone = indexes;
  for (const std::string& index : indexes) {
    named.push_back(fmt::format("the files of {}", Quote(index)));
  }
  for (const auto& [pattern, files] : sets) {
    if (files.size() == 1) alone.push_back(files.front());
    named.push_back(Quote(files.size() == 1 ? files.front() : pattern) +
                    (IsAdapter(pattern) ? " (an adapter)" : ""));
  }
  const bool is_all = alone.size() == named.size();
  throw Usage(
      fmt::format(
          "`{}` contains {} sets of tensors, and no index or file that loaders try first: {}",
          folder, named.size(), fmt::join(named, ", ")),
      fmt::format("name the one to read{}{}",
                  alone.empty() ? "" : fmt::format(", as in `{}/{}`", folder, alone.front()),
                  is_all ? "" : "; to read numbered files, move the others away"));
}

}  // namespace

const std::string* WeightMap::FileOf(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {},
                                              [](const auto& entry) { return entry.first.view(); });
  return found == entries_.end() || found->first.view() != name ? nullptr : found->second;
}

bool IsIndex(std::string_view path, std::string_view end) {
  return path.ends_with(".json") && path.find(fmt::format("{}.index.", end)) != path.npos;
}

std::optional<ModelFiles> ChooseFiles(const std::string& folder, const FileNames& names,
                                      const std::string& index, Contents* contents) {
  ModelFiles chosen;
  std::vector<std::string> indexes;
  for (const std::string& name : NamesIn(folder)) {
    if (!name.starts_with(names.begin)) continue;
    if (name.ends_with(names.end)) chosen.files.push_back(name);
    if (IsIndex(name, names.end)) indexes.push_back(name);
  }
  if (chosen.files.empty() && index.empty()) return std::nullopt;
  if (!index.empty()) {
    TakeListed(folder, index, &chosen, contents);
    return chosen;
  }
  for (const std::string_view stem : names.stems) {
    const std::string whole = fmt::format("{}{}", stem, names.end);
    const std::string first = whole + ".index.json";
    const bool has_whole = Has(chosen.files, whole);
    if (Has(indexes, first)) {
      TakeListed(folder, first, &chosen, contents);
      if (has_whole && !Has(chosen.files, whole)) {
        NoteMissing(
            fmt::format("`{}` is next to `{}`, which lists other files: Transformers would load "
                        "only that file",
                        whole, first),
            contents);
      }
      return chosen;
    }
    if (has_whole) {
      Keep({whole}, fmt::format("`{}` is", whole), &chosen.files, contents);
      return chosen;
    }
  }
  TakeOnlySet(folder, indexes, &chosen, contents);
  contents->is_usual = false;
  return chosen;
}

void CheckIfPart(const std::string& file, Contents* contents) {
  const auto part = NumberedPartOf(file);
  if (!part || part->count <= 1) return;
  contents->findings.Add(
      {file, "", fmt::format("is part {} of {}, and read alone", part->number, part->count)});
}

void CheckWeightMap(const std::string& folder, const ModelFiles& chosen, Contents* contents) {
  const auto& [index, map, files] = chosen;
  if (!map) return;
  std::string config;
  ReadInputIfExists(folder + "/config.json", kConfigLimit, &config);
  const bool ties_head = TiesHead(config);
  const bool has_table = std::ranges::any_of(
      contents->tensors, [](const auto& tensor) { return IsTokenTable(tensor.first); });
  for (const auto& [packed, listed] : map->entries()) {
    const std::string name(packed.view()), &file = *listed;
    const auto held = contents->tensors.find(name);
    // Some saves list a tied tensor that they do not store.
    const NameRow* const tied = FindNameRow(NameRow::Kind::kTied, name);
    const bool is_tied = tied != nullptr && has_table && name.ends_with(".weight") &&
                         (tied->form != kIfConfigTies || ties_head);
    if (held == contents->tensors.end() && is_tied) {
      contents->findings.Add(
          {index, Escape(name), "is not in any file: it repeats the table of tokens"});
      continue;
    }
    if (held == contents->tensors.end()) {
      NoteMissing(fmt::format("`{}` lists {}, which is not in any file", index, Quote(name)),
                  contents);
    }
    if (held == contents->tensors.end() || file != held->second.file) {
      contents->findings.Add(
          {index, Escape(name), fmt::format("is not in {}", Escape("\"" + file + "\""))});
    }
  }
  for (const auto& [name, holding] : contents->tensors) {
    if (map->FileOf(name) == nullptr)
      contents->findings.Add({index, Escape(name), "is not listed"});
  }
}

}  // namespace shardinit
