#include "formats/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/input.h"

namespace shardinit {
namespace {

constexpr size_t kIndexLimit = size_t{1} << 30;

bool Has(const std::vector<std::string>& files, const std::string& file) {
  return std::find(files.begin(), files.end(), file) != files.end();
}

void Lose(std::string what, Contents* contents) {
  if (contents->lost.empty()) contents->lost = std::move(what);
}

// Finds a file that is missing among some that are named as parts, `x-00001-of-00003.safetensors`.
void RequireAllParts(const std::vector<std::string>& files, Contents* contents) {
  constexpr size_t kDigits = 5;
  constexpr std::string_view kOf = "-of-";
  for (const std::string& file : files) {
    const size_t of = file.rfind(kOf);
    if (of == file.npos || of < kDigits + 1) continue;
    const std::string_view count = std::string_view(file).substr(of + kOf.size(), kDigits);
    const auto parts = ParseNumber<int64_t>(count);
    const std::string head = file.substr(0, of - kDigits), tail = file.substr(of);
    if (head.empty() || !head.ends_with('-') || !parts) continue;
    for (int64_t part = 1; part <= *parts; ++part) {
      const std::string other = fmt::format("{}{:05}{}", head, part, tail);
      if (Has(files, other)) continue;
      return Lose(fmt::format("`{}` is missing, and `{}` is there", other, file), contents);
    }
  }
}

}  // namespace

WeightMap ReadWeightMap(const std::string& folder, const std::string& index) {
  std::string text;
  const std::string path = folder + "/" + index;
  if (!ReadInputIfExists(path, kIndexLimit, &text)) return std::nullopt;
  const nlohmann::json in = ParseJson(text, path);
  if (!in.is_object() || !in.contains("weight_map") || !in["weight_map"].is_object()) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no `weight_map`", path));
  }
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : in["weight_map"].items()) {
    if (!file.is_string()) {
      throw Error(ExitCode::kRefused,
                  fmt::format("`{}`: the file of {} is not text", path, Quote(name)));
    }
    map.emplace(name, file.get<std::string>());
  }
  return map;
}

void KeepListed(const WeightMap& map, const std::string& index, const std::string& whole,
                std::vector<std::string>* files, Contents* contents) {
  if (!map && !Has(*files, whole)) return RequireAllParts(*files, contents);
  std::set<std::string> listed;
  if (map) {
    for (const auto& [name, file] : *map) listed.insert(file);
    for (const std::string& file : listed) {
      if (Has(*files, file)) continue;
      Lose(fmt::format("`{}` lists `{}`, which is missing", index, Escape(file)), contents);
    }
    if (Has(*files, whole) && !listed.contains(whole)) {
      Lose(fmt::format("`{}` stands beside `{}`, which lists other files: Transformers would load "
                       "that file alone",
                       whole, index),
           contents);
    }
  } else {
    listed.insert(whole);
  }
  std::erase_if(*files, [&](const std::string& file) {
    if (listed.contains(file)) return false;
    contents->findings.Add({file, "",
                            fmt::format("is not part of the model: {}",
                                        map ? fmt::format("`{}` does not list it", index)
                                            : fmt::format("`{}` is", whole))});
    return true;
  });
}

void CheckWeightMap(const WeightMap& map, const std::string& index, Contents* contents) {
  if (!map) return;
  for (const auto& [name, file] : *map) {
    const auto held = contents->tensors.find(name);
    if (held == contents->tensors.end()) {
      Lose(fmt::format("`{}` lists {}, which is in no file", index, Quote(name)), contents);
    }
    if (held == contents->tensors.end() || file != held->second.file) {
      contents->findings.Add(
          {index, Escape(name), fmt::format("is not in {}", Escape("\"" + file + "\""))});
    }
  }
  for (const auto& [name, holding] : contents->tensors) {
    if (!map->contains(name)) contents->findings.Add({index, Escape(name), "is not listed"});
  }
}

}  // namespace shardinit
