#include "export/compare.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/reader.h"
#include "formats/zarr/array.h"
#include "manifest/manifest.h"
#include "manifest/reader.h"
#include "report/text.h"

namespace shardinit {
namespace {

// A tensor as the folder has it.
struct Holding {
  std::string file;   // Where it is first met.
  std::string dtype;  // As files of that kind write it.
  Shape shape;
  std::vector<FilePiece> pieces;
};
using Holdings = std::map<std::string, Holding>;

constexpr std::string_view kSuffix = ".safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kIndexLimit = size_t{1} << 30;

std::vector<std::string> FilesOf(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) throw SystemError("read the folder", folder);
  std::vector<std::string> files;
  while (const dirent* entry = readdir(dir.get())) {
    if (std::string_view(entry->d_name).ends_with(kSuffix)) files.emplace_back(entry->d_name);
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool Overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d])
      return false;
  }
  return true;
}

// Pieces that together are the whole tensor, none of it twice.
void CheckPieces(const std::string& name, const Holding& holding) {
  int64_t count = 0;
  for (size_t i = 0; i < holding.pieces.size(); ++i) {
    count += ElementCount(holding.pieces[i].box.shape);
    for (size_t j = 0; j < i; ++j) {
      if (!Overlap(holding.pieces[i].box, holding.pieces[j].box)) continue;
      throw Error(ExitCode::kRefused, fmt::format("{} is in `{}` and `{}`", Quote(name),
                                                  holding.pieces[j].file, holding.pieces[i].file));
    }
  }
  int64_t whole = 1;
  for (const int64_t extent : holding.shape) {
    if (__builtin_mul_overflow(whole, extent, &whole)) whole = -1;
  }
  if (count != whole) {
    throw Error(ExitCode::kRefused,
                fmt::format("{} is not whole: its boxes have {} of the {} elements of {}",
                            Quote(name), count, whole, InShape(holding.shape)));
  }
}

Holdings ReadSafetensors(const std::string& folder, const std::vector<std::string>& files) {
  Holdings holdings;
  for (const std::string& file : files) {
    const std::string path = folder + "/" + file;
    for (safetensors::Entry& entry : safetensors::ReadHeader(path)) {
      Holding& holding = holdings[entry.name];
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
  for (const auto& [name, holding] : holdings) CheckPieces(name, holding);
  return holdings;
}

Holdings ReadZarr(const std::string& folder, const std::vector<std::string>& names) {
  Holdings holdings;
  for (const std::string& name : names) {
    zarr::Array array = zarr::ReadArray(folder + "/" + name);
    holdings[name] = {Escape(name) + "/.zarray", std::move(array.dtype), std::move(array.shape),
                      std::move(array.pieces)};
  }
  return holdings;
}

std::string_view NameOf(DType dtype) { return InfoOf(dtype).name; }

Holdings ReadCheckpoint(const std::string& folder) {
  Digest plan_sha256{};
  const Plan plan = LoadCheckpointPlan(folder, &plan_sha256);
  const CheckpointReader reader(folder, plan, plan_sha256);
  Holdings holdings;
  for (const Tensor& tensor : plan.graph.tensors) {
    holdings[tensor.path] = {kManifestName, std::string(InfoOf(tensor.dtype).name), tensor.shape,
                             reader.PiecesOf(tensor)};
  }
  return holdings;
}

// Loaders look for a tensor where the index says it is.
void CheckIndex(const std::string& folder, const Holdings& holdings,
                std::vector<Finding>* findings) {
  std::string text;
  if (!ReadFileIfExists(folder + "/" + kIndexFile, kIndexLimit, &text)) return;
  const nlohmann::json index = ParseJson(text, kIndexFile);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` has no `weight_map`", kIndexFile));
  }
  const auto& map = index["weight_map"];
  for (const auto& [name, file] : map.items()) {
    const auto held = holdings.find(name);
    if (held == holdings.end() || file != held->second.file) {
      findings->push_back(
          {kIndexFile, Escape(name), fmt::format("is not in {}", Escape(file.dump()))});
    }
  }
  for (const auto& [name, holding] : holdings) {
    if (!map.contains(name)) findings->push_back({kIndexFile, Escape(name), "is not listed"});
  }
}

}  // namespace

Comparison Compare(const std::string& folder, const Plan& plan, const WorkerOptions& options,
                   const std::function<void(const WorkCounters& counters)>& progress,
                   WorkCounters* counters) {
  Comparison result;
  Holdings holdings;
  std::string_view (*name_of)(DType dtype) = NameOf;
  RequireFolder(folder);
  if (Exists(folder + "/" + kPlanName)) {
    holdings = ReadCheckpoint(folder);
  } else if (const auto files = FilesOf(folder); !files.empty()) {
    holdings = ReadSafetensors(folder, files);
    CheckIndex(folder, holdings, &result.findings);
    name_of = safetensors::NameOf;
  } else if (const auto arrays = zarr::ArraysIn(folder); !arrays.empty()) {
    holdings = ReadZarr(folder, arrays);
    name_of = zarr::NameOf;
  } else {
    throw Error(
        ExitCode::kUsage,
        fmt::format("`{}` is no checkpoint and holds no safetensors files or zarr arrays", folder),
        "name a folder that `shardinit gen` or `shardinit export` wrote, or Hugging Face's tools");
  }

  struct Pair {
    const Tensor* tensor;
    const Holding* holding;
    Digest wanted{}, held{};
  };
  std::vector<Pair> pairs;
  for (const Tensor& tensor : plan.graph.tensors) {
    const auto it = holdings.find(tensor.path);
    if (it == holdings.end()) {
      result.findings.push_back({"", tensor.path, "is missing"});
      continue;
    }
    const Holding& holding = it->second;
    const std::string_view dtype = name_of(tensor.dtype);
    if (holding.dtype != dtype || holding.shape != tensor.shape) {
      result.findings.push_back(
          {holding.file, tensor.path,
           fmt::format("is {} {}, but the spec has {} {}", Escape(holding.dtype),
                       InShape(holding.shape), dtype, InShape(tensor.shape))});
    } else {
      pairs.push_back({&tensor, &holding});
      ++result.tensors;
      result.bytes += tensor.bytes();
    }
  }
  std::unordered_set<std::string_view> paths;
  for (const Tensor& tensor : plan.graph.tensors) paths.insert(tensor.path);
  for (const auto& [name, holding] : holdings) {
    if (paths.count(name) == 0) {
      result.findings.push_back({holding.file, Escape(name), "is not in the spec"});
    }
  }

  std::vector<BoxTask> tasks;
  for (Pair& pair : pairs) {
    const Box whole = WholeOf(pair.tensor->shape);
    tasks.push_back({pair.tensor, whole, {}, &pair.wanted});
    tasks.push_back({pair.tensor, whole, {}, &pair.held});
    tasks.back().source = [&pair, whole](int64_t first, int64_t count, void* out) {
      ReadPieces(pair.holding->pieces, InfoOf(pair.tensor->dtype).bytes, whole, first, count, out);
    };
  }
  {
    Workers workers(options, counters);
    workers.Submit(std::move(tasks), nullptr);
    while (!workers.Wait(1, 100)) {
      ThrowIfInterrupted();
      if (progress) progress(*counters);
    }
  }
  for (const Pair& pair : pairs) {
    if (pair.held == pair.wanted) continue;
    result.findings.push_back(
        {pair.holding->file, pair.tensor->path,
         fmt::format("has other values: sha256 {} instead of {}", ToHex(pair.held).substr(0, 12),
                     ToHex(pair.wanted).substr(0, 12))});
  }
  return result;
}

}  // namespace shardinit
