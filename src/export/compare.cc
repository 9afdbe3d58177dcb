#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "export/export.h"
#include "formats/format.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace {

std::string_view NameOf(DType dtype) { return InfoOf(dtype).name; }

Contents ReadCheckpoint(const std::string& folder) {
  Digest plan_sha256{};
  const Plan plan = LoadCheckpointPlan(folder, &plan_sha256);
  const CheckpointReader reader(folder, plan, plan_sha256);
  Contents contents;
  for (const Tensor& tensor : plan.graph.tensors) {
    contents.tensors[std::string(tensor.path())] = {kManifestName,
                                                    std::string(NameOf(tensor.dtype())),
                                                    tensor.shape(), reader.PiecesOf(tensor)};
  }
  return contents;
}

// Reads the tensors of a folder. `*name_of` returns the name of a type in its files.
Contents Read(const std::string& folder, const std::string& part,
              std::function<std::string_view(DType)>* name_of) {
  *name_of = NameOf;
  if (IsInputFolder(folder) && InputExists(folder + "/" + kPlanName)) return ReadCheckpoint(folder);
  const FormatReader* reader = nullptr;
  Contents contents = ReadForeign(folder, part, &reader);
  *name_of = [reader](DType dtype) { return ForeignNamesOf(dtype).*reader->dtype; };
  return contents;
}

// Counts the entries of an optimizer or of another part of a run.
int64_t CountOptimizer(const Contents& contents) {
  int64_t count = 0;
  for (const auto& [name, size] : contents.others) {
    if (name != "objects" && name != "_extra_state") count += size.entries;
  }
  return count;
}

// Removes the prefix from all names that begin with it, unless more names match paths with it.
// Returns whether it did.
bool RemovePrefix(std::string_view prefix, const std::unordered_set<std::string_view>& paths,
                  std::map<std::string, TensorInFolder>* tensors) {
  std::map<std::string, TensorInFolder> renamed;
  int64_t as_they_are = 0, without = 0;
  for (const auto& [name, holding] : *tensors) {
    std::string rest = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    as_they_are += paths.count(name) != 0;
    without += paths.count(rest) != 0;
    renamed.emplace(std::move(rest), holding);
  }
  if (without < as_they_are) return false;
  *tensors = std::move(renamed);
  return true;
}

std::unordered_set<std::string_view> PathsIn(const Plan& plan) {
  std::unordered_set<std::string_view> paths;
  for (const Tensor& tensor : plan.graph.tensors) paths.insert(tensor.path());
  return paths;
}

// A tensor of the plan, and the same tensor in the folder.
struct Pair {
  const Tensor* tensor;
  const TensorInFolder* holding;
  size_t place;  // in the list of compared tensors
  Digest wanted{}, held{};
};

// Finds the tensors that the folder has in the plan's type and shape. Adds findings for the others.
std::vector<Pair> FindPairs(const std::map<std::string, TensorInFolder>& holdings, const Plan& plan,
                            const std::unordered_set<std::string_view>& paths,
                            const std::function<std::string_view(DType)>& name_of,
                            const std::string& only, Comparison* result) {
  const auto is_wanted = [&](const std::string& path) {
    return only.empty() || PathMatches(only, path);
  };
  std::vector<Pair> pairs;
  for (const Tensor& tensor : plan.graph.tensors) {
    if (!is_wanted(std::string(tensor.path()))) continue;
    const auto it = holdings.find(std::string(tensor.path()));
    if (it == holdings.end()) {
      result->findings.Add({"", std::string(tensor.path()), "is missing"});
      continue;
    }
    const TensorInFolder& holding = it->second;
    const std::string_view dtype = name_of(tensor.dtype());
    const bool has_form = holding.dtype == dtype && holding.shape == tensor.shape();
    result->compared.push_back(
        {std::string(tensor.path()), &tensor,
         has_form ? ComparedTensor::Outcome::kEqual : ComparedTensor::Outcome::kOtherForm});
    if (!has_form) {
      result->findings.Add({holding.file, std::string(tensor.path()),
                            fmt::format("is {} {}, but the spec has {} {}", Escape(holding.dtype),
                                        InShape(holding.shape), dtype, InShape(tensor.shape()))});
    } else {
      pairs.push_back({&tensor, &holding, result->compared.size() - 1});
      ++result->tensors;
      result->bytes += tensor.bytes();
    }
  }
  for (const auto& [name, holding] : holdings) {
    if (paths.count(name) == 0 && is_wanted(name)) {
      result->findings.Add({holding.file, Escape(name), "is not in the spec"});
    }
  }
  return pairs;
}

// Generates the boxes of a rank and returns their digests. Boxes of tensors without a pair keep the
// digest of the receipt. `made` caches the digests of replicas.
std::vector<Digest> GenerateDigests(
    const RankPlan& rank, const Receipt& receipt,
    const std::unordered_map<std::string_view, const Pair*>& pair_of, bool has_replicas,
    std::map<std::pair<const Tensor*, Shape>, Digest>* made, const WorkerOptions& options,
    const std::function<void(const WorkCounters& counters)>& progress, WorkCounters* counters) {
  std::vector<Digest> wanted = receipt.digests;
  std::vector<size_t> anew;
  std::vector<BoxTask> tasks;
  for (size_t i = 0; i < rank.shards.size(); ++i) {
    const Shard& shard = rank.shards[i];
    const auto pair = pair_of.find(shard.tensor->path());
    if (pair == pair_of.end()) continue;
    const auto before = made->find({shard.tensor, shard.box.offset});
    if (before != made->end()) {
      wanted[i] = before->second;
      continue;
    }
    anew.push_back(i);
    tasks.push_back({pair->second->tensor, shard.box, {}, &wanted[i]});
  }
  Workers workers(options, counters);
  workers.Submit(std::move(tasks), nullptr);
  workers.WaitFor(1, [&] {
    if (progress) progress(*counters);
  });
  for (const size_t i : anew) {
    if (has_replicas) (*made)[{rank.shards[i].tensor, rank.shards[i].box.offset}] = wanted[i];
  }
  return wanted;
}

Finding OtherValues(const std::string& file, std::string path, const Digest& held,
                    const Digest& wanted) {
  return {file, std::move(path),
          fmt::format("has other values: sha256 {} instead of {}", ToHex(held).substr(0, 12),
                      ToHex(wanted).substr(0, 12))};
}

}  // namespace

Comparison CompareVerified(const std::string& folder, std::string_view manifest, const Plan& plan,
                           const WorkerOptions& options,
                           const std::function<void(const WorkCounters& counters)>& progress,
                           WorkCounters* counters) {
  const auto changed = [&] {
    return Error(ExitCode::kWorld, fmt::format("`{}` was changed while it was read", folder),
                 "run the same command again");
  };
  const std::unique_ptr<Place> place = Place::At(folder);
  Digest plan_sha256{};
  Plan held = LoadCheckpointPlan(folder, &plan_sha256);
  LoadDevices(*place, &held);  // The manifest lists them.
  std::map<std::string, TensorInFolder> holdings;
  for (const Tensor& tensor : held.graph.tensors) {
    holdings[std::string(tensor.path())] = {
        kManifestName, std::string(NameOf(tensor.dtype())), tensor.shape(), {}};
  }
  Comparison result;
  const std::vector<Pair> pairs = FindPairs(
      holdings, plan, PathsIn(plan), [](DType dtype) { return NameOf(dtype); }, /*only=*/"",
      &result);
  std::unordered_map<std::string_view, const Pair*> pair_of;
  for (const Pair& pair : pairs) pair_of.emplace(pair.tensor->path(), &pair);
  std::map<std::pair<const Tensor*, Shape>, Digest> made;
  std::vector<ReceiptEntry> entries;
  for (int64_t r = 0; r < held.world_size(); ++r) {
    ThrowIfInterrupted();
    const RankPlan rank = PlanRank(held, r);
    const std::optional<Receipt> receipt = FindReceipt(*place, rank, plan_sha256, true);
    if (!receipt) throw changed();
    const std::vector<Digest> wanted =
        GenerateDigests(rank, *receipt, pair_of, held.graph.replicas == Replicas::kFull, &made,
                        options, progress, counters);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == receipt->digests[i]) continue;
      const std::string path(rank.shards[i].tensor->path());
      ComparedTensor& compared = result.compared[pair_of.at(path)->place];
      // Reports only the first such box of a tensor.
      if (std::exchange(compared.outcome, ComparedTensor::Outcome::kOtherValues) ==
          ComparedTensor::Outcome::kEqual) {
        result.findings.Add(OtherValues(RankFile(r), path, receipt->digests[i], wanted[i]));
      }
    }
    entries.push_back(EntryOf(held, rank, *receipt));
  }
  std::optional<FileEntry> index;
  if (!ClaimedIndex(manifest, &index) ||
      !IsManifestOf(manifest, held, plan_sha256, entries, index)) {
    throw changed();
  }
  return result;
}

Comparison Compare(const std::string& folder, const Plan& plan, const WorkerOptions& options,
                   const std::function<void(const WorkCounters& counters)>& progress,
                   WorkCounters* counters, const std::string& only, const std::string& part) {
  Comparison result;
  std::function<std::string_view(DType)> name_of;
  Contents contents = Read(folder, part, &name_of);
  const std::unordered_set<std::string_view> paths = PathsIn(plan);
  const std::string prefix = contents.part + ".";
  const bool keeps_prefix =
      !contents.part.empty() && !RemovePrefix(prefix, paths, &contents.tensors);
  result.findings = std::move(contents.findings);
  result.optimizer_entries = CountOptimizer(contents);
  std::vector<Pair> pairs = FindPairs(contents.tensors, plan, paths, name_of, only, &result);
  for (ComparedTensor& compared : result.compared) {
    // A folder's own plan never has the prefix.
    if (keeps_prefix && compared.name.starts_with(prefix)) {
      compared.name.erase(0, prefix.size());
    }
  }

  std::vector<BoxTask> tasks;
  for (Pair& pair : pairs) {
    const Box whole = WholeOf(pair.tensor->shape());
    tasks.push_back({pair.tensor, whole, {}, &pair.wanted});
    tasks.push_back({pair.tensor, whole, {}, &pair.held});
    tasks.back().source = [&pair, whole](int64_t first, int64_t count, void* out) {
      ReadPieces(pair.holding->pieces, InfoOf(pair.tensor->dtype()).bytes, whole, first, count,
                 out);
    };
  }
  {
    Workers workers(options, counters);
    workers.Submit(std::move(tasks), nullptr);
    workers.WaitFor(1, [&] {
      if (progress) progress(*counters);
    });
  }
  for (const Pair& pair : pairs) {
    if (pair.held == pair.wanted) continue;
    result.compared[pair.place].outcome = ComparedTensor::Outcome::kOtherValues;
    result.findings.Add(
        OtherValues(pair.holding->file, std::string(pair.tensor->path()), pair.held, pair.wanted));
  }
  return result;
}

}  // namespace shardinit
