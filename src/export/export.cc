#include "export/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/glob.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/text.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/receipt.h"
#include "export/record.h"
#include "export/shares.h"
#include "export/target.h"
#include "formats/foreign_names.h"
#include "place/object_writer.h"
#include "place/shared_files.h"
#include "plan/load.h"
#include "plan/relayout.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

// Files that are open at once. Small files, such as chunks, must not wait for each other's disk.
constexpr int64_t kFilesAtOnce = 16;
constexpr int kRequestsAtOnce = 16;  // requests for small files at once

// Lower-case names by which readers, of this tool and of others, recognize a folder or a part of a
// model. A folder of such a name makes an export unreadable.
constexpr std::string_view kSigns[] = {
    "*.bin",      "*.bin.*",   "*.ckpt",
    "*.distcp",   "*.gguf",    "*.h5",
    "*.hdf5",     "*.json",    "*.jsonl",
    "*.keras",    "*.msgpack", "*.npy",
    "*.npz",      "*.ocdbt",   "*.ot",
    "*.pkl",      "*.pt",      "*.pth",
    "*.pth.tar",  "*.py",      "*.safetensors",
    "*.tar",      "*.txt",     ".metadata",
    ".z*",        "_metadata", "_checkpoint_metadata",
    "_sharding",  "_strings",  "array_metadatas",
    "checkpoint", "latest",    "ocdbt.*",
    "ranks",
};

// Rejects a tensor with the name of another file of the export, or of a file that readers look for:
// some formats have a folder or a file for each tensor.
void RequireNamesApart(const std::vector<FileLayout>& files) {
  std::set<std::string> names = {kExportName, kExportNotes};
  for (const FileLayout& file : files) {
    if (file.boxes.empty()) names.insert(Lower(file.path));
  }
  std::string_view before;  // the folder of a tensor may have millions of files
  for (const FileLayout& file : files) {
    if (file.boxes.empty()) continue;
    const std::string_view stored = std::string_view(file.path).substr(0, file.path.find('/'));
    if (stored == before) continue;
    before = stored;
    const std::string folder = Lower(stored);
    const bool is_of_format = names.contains(folder);
    const bool is_sign =
        stored.size() < file.path.size() && std::ranges::any_of(kSigns, [&](auto pattern) {
          return Matches(pattern, folder, Stars::kRuns);
        });
    if (!is_sign && !is_of_format) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} is the name of both a tensor and a file {}",
                    Quote(file.boxes.front().tensor->path()),
                    is_of_format ? "of the format" : "that readers of such a folder look for"),
        "leave it out, with `convert --drop` or `export --only`, or store it under another name "
        "with a layout of the spec");
  }
}

// Makes the files of an export, in shares. Other processes may make other shares.
class Exporter {
 public:
  Exporter(const ExportRequest& request, ExportParts* parts, ExportTarget* target,
           WorkCounters* counters)
      : request_(request),
        parts_(*parts),
        target_(*target),
        counters_(*counters),
        may_differ_(request.source != nullptr || !parts->plan.graph.sources.empty()),
        left_in_(static_cast<size_t>(parts->shares)) {}

  // Makes the requested shares that are not done. Returns the number of bytes of their elements.
  int64_t MakeShares() {
    const std::vector<int64_t> asked = parts_.RequestedShares();
    const std::vector<int64_t> left = FindUndone(asked);
    for (const int64_t share : asked) {
      if (!std::ranges::binary_search(left, share)) done_.insert(share);
    }
    std::vector<int64_t> files;
    int64_t bytes = 0;
    bool has_large = false;
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (!std::ranges::binary_search(left, parts_.share[f])) continue;
      files.push_back(static_cast<int64_t>(f));
      ++left_in_[static_cast<size_t>(parts_.share[f])];
      has_large = has_large || IsLarge(parts_.files[f]);
      for (const FileBox& box : parts_.files[f].boxes) bytes += BytesOf(box);
    }
    target_.Prepare(has_large);
    FindMade(files);
    const auto place = target_.place();
    MakeFiles(
        {*place, request_.workers, request_.source, kFilesAtOnce, "files",
         [&](int64_t) {
           if (request_.progress) request_.progress(counters_, bytes);
         }},
        std::move(files), [&](int64_t f) { return BeginFile(static_cast<size_t>(f)); }, &counters_);
    for (const int64_t share : left) {
      if (target_.has_empty_shares() && !HasFiles(share)) PutReceipt(share);
    }
    done_.insert(left.begin(), left.end());
    return bytes;
  }

  // Returns the ranks of the shares that other processes have not made.
  std::vector<int64_t> FindMissing() {
    std::vector<int64_t> others, unnamed;
    for (int64_t share = 0; share < parts_.shares; ++share) {
      const bool is_wanted = target_.has_empty_shares() || HasFiles(share);
      if (is_wanted && !done_.contains(share)) others.push_back(share);
    }
    if (!others.empty()) target_.List();
    std::ranges::copy_if(others, std::back_inserter(unnamed),
                         [&](int64_t share) { return !target_.HasReceipt(share); });
    std::set<int64_t> missing;
    for (const int64_t share : unnamed.empty() ? FindUndone(others) : unnamed) {
      missing.insert(parts_.RankOf(share));
    }
    return {missing.begin(), missing.end()};
  }

  // Writes the files without elements, and the record last.
  void Complete() {
    RequireOneSource();
    std::vector<size_t> inner, outer;
    bool has_large = false;
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (parts_.share[f] >= 0) continue;
      has_large = has_large || IsLarge(parts_.files[f]);
      (parts_.files[f].path.find('/') == std::string::npos ? outer : inner).push_back(f);
    }
    const FileLayout record = {
        .path = kExportName,
        .head = WriteRecord(parts_.plan, request_, parts_.files, parts_.digests, parts_.crcs)};
    target_.Prepare(has_large || IsLarge(record));
    target_.RequireClaim(false);
    target_.BeginRest();
    ParallelFor(std::ssize(inner), kRequestsAtOnce, [&](int64_t i) {
      PutTextFile(Completed(parts_.files[inner[static_cast<size_t>(i)]]));
    });
    // Readers start with the last of these.
    for (const size_t f : outer) PutTextFile(Completed(parts_.files[f]));
    target_.RequireClaim(false);
    PutTextFile(record);
  }

 private:
  // Files with elements are assigned to the shares in turn.
  bool HasFiles(int64_t share) const { return share < parts_.files_with_elements; }

  static bool IsLarge(const FileLayout& file) { return file.size() > PartBytes(file.size()); }

  FileOutline OutlineOf(size_t f) const {
    FileOutline outline = OutlineFile(parts_.files[f]);
    outline.metadata = {{"export-sha256", target_.claim_sha256()}};
    return outline;
  }

  // Returns the shares, ascending, that lack a valid receipt or a file. Reads the receipts of the
  // other shares.
  std::vector<int64_t> FindUndone(const std::vector<int64_t>& shares) {
    if (target_.receipts() == nullptr) return shares;
    std::vector<char> is_done(shares.size());
    ParallelFor(std::ssize(shares), kRequestsAtOnce, [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      is_done[at] = target_.HasReceipt(shares[at]) && ReadReceipt(shares[at]);
    });
    std::vector<int64_t> undone;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (!is_done[i]) undone.push_back(shares[i]);
    }
    return undone;
  }

  bool ReadReceipt(int64_t share) {
    std::string text;
    const std::string name = target_.ReceiptName(share), path = target_.receipts()->PathOf(name);
    if (!target_.receipts()->Read(name, kShareReceiptLimit, &text).empty()) return false;
    const auto has_size = [&](size_t f) { return target_.SizeOf(f) == parts_.files[f].size(); };
    const nlohmann::json receipt = ParseJson(text, path);
    if (receipt.is_array()) return ReadShare(receipt, path, share, &parts_, has_size);
    try {
      if (receipt.at("export_sha256") != target_.claim_sha256()) return false;
      if (!ReadShare(receipt.at("files"), path, share, &parts_, has_size)) return false;
      for (const nlohmann::json& read : receipt.at("sources")) {
        AddSource(share, read.at(0), read.at(1), read.at(2));
      }
    } catch (const nlohmann::json::exception& e) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` is damaged: {}", path, ComplaintOf(e)),
                  "remove it, and run the same command again");
    }
    return true;
  }

  void AddSource(int64_t share, const std::string& source, const std::string& tensor,
                 const std::string& sha256) {
    const std::lock_guard lock(mutex_);
    sources_[{source, tensor}].emplace(sha256, share);
  }

  // Throws Error (kConflict) if shares were made of sources that had different elements.
  void RequireOneSource() const {
    for (const auto& [name, digests] : sources_) {
      if (digests.size() == 1) continue;
      const auto& [one, share] = *digests.begin();
      const auto& [other, other_share] = *digests.rbegin();
      throw Error(
          ExitCode::kConflict,
          fmt::format(
              "`{}`: rank {} was made from {} of source {} with SHA-256 {}, but rank {} with {}",
              request_.folder, parts_.RankOf(share), Quote(name.second), Quote(name.first),
              one.substr(0, 12), parts_.RankOf(other_share), other.substr(0, 12)),
          "make all of it from one source, in another folder, and give its `digest` in the spec");
    }
  }

  // Finds the listed files that other processes have made.
  void FindMade(const std::vector<int64_t>& files) {
    is_made_.assign(parts_.files.size(), kUnknown);
    const auto place = target_.place();
    if (place->traits().removes) return;  // files are replaced
    ParallelFor(std::ssize(files), kRequestsAtOnce, [&](int64_t i) {
      const auto f = static_cast<size_t>(files[static_cast<size_t>(i)]);
      is_made_[f] = target_.SizeOf(f) >= 0 && IsMade(*place, OutlineOf(f), "export");
    });
  }

  FileWork BeginFile(size_t f) {
    const auto place = target_.place();
    FileOutline outline = OutlineOf(f);
    char& is_made = is_made_[f];
    if (is_made == kUnknown) is_made = IsMade(*place, outline, "export");
    std::shared_ptr<NewPlaceFile> file;
    if (std::exchange(is_made, kUnknown) == 0) {
      file = place->Begin(std::move(outline), &parts_.crcs[f]);
    }
    return {TasksOf(parts_.files[f], file.get(), &parts_.digests[f], &parts_.crcs[f]),
            [this, file, f] { return Commit(f, file.get()); }};
  }

  // Gives a file its name, and writes the receipt of its share if the share is complete. `file` is
  // null if another process made it. Returns false if the file must be made again.
  bool Commit(size_t f, NewPlaceFile* file) {
    const Timer timer(&counters_.sync_ns);
    const bool is_own =
        file != nullptr && file->Complete([&] { target_.RequireClaim(!IsLarge(parts_.files[f])); });
    if (!is_own) {
      const auto place = target_.place();
      if (!IsMade(*place, OutlineOf(f), "export")) return false;
      if (may_differ_) {
        const FileLayout made = Finished(parts_.files[f], parts_.crcs[f]);
        const FileOutline outline = OutlineFile(made);
        RequireSameBytes(*place, outline, {parts_.digests[f], HashGaps(outline)});
      }
    }
    const int64_t share = parts_.share[f];
    {
      const std::lock_guard lock(mutex_);
      if (--left_in_[static_cast<size_t>(share)] > 0) return true;
    }
    if (target_.receipts() == nullptr) return true;
    target_.RequireClaim(true);
    PutReceipt(share);
    return true;
  }

  void PutReceipt(int64_t share) {
    const std::string text = WriteReceipt(share);
    target_.receipts()->Put(target_.ReceiptName(share), [&](const auto& append) { append(text); });
    target_.receipts()->Sync("");
  }

  std::string WriteReceipt(int64_t share) {
    nlohmann::json files = WriteShare(parts_, share);
    // In a folder, the claim covers the sources.
    if (target_.claim_sha256().empty()) return files.dump();
    RankPlan tensors = {};
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (parts_.share[f] != share) continue;
      for (const FileBox& box : parts_.files[f].boxes) {
        tensors.shards.push_back({box.tensor, box.box});
      }
    }
    nlohmann::json sources = nlohmann::json::array();
    for (const ReadSource& read : SourcesRead(parts_.plan, tensors)) {
      sources.push_back({read.source, read.tensor, ToHex(read.sha256)});
      AddSource(share, read.source, read.tensor, ToHex(read.sha256));
    }
    const nlohmann::json receipt = {{"export_sha256", target_.claim_sha256()},
                                    {"sources", std::move(sources)},
                                    {"files", std::move(files)}};
    return receipt.dump();
  }

  // Makes a file without elements, or compares it with the existing file.
  void PutTextFile(const FileLayout& file) {
    const auto place = target_.place();
    const FileOutline outline = OutlineFile(file);
    if (place->traits().removes) {
      place->Begin(outline)->Complete();
    } else if (IsLarge(file)) {
      PutOnce(*place, outline, HashGaps(outline), [&] { target_.RequireClaim(false); });
    } else {
      place->Put(file.path, [&](const auto& append) { ForEachGap(outline, append); });
    }
  }

  const ExportRequest& request_;
  ExportParts& parts_;
  ExportTarget& target_;
  WorkCounters& counters_;
  const bool may_differ_;  // the plan does not determine the values

  static constexpr char kUnknown = 2;
  std::vector<char> is_made_;  // by file: whether another process has made it
  std::set<int64_t> done_;     // shares whose digests are known
  std::mutex mutex_;
  std::vector<int64_t> left_in_;  // by share: number of files still to make
  // The digests of source tensors, each with a share that was made from it.
  std::map<std::pair<std::string, std::string>, std::map<std::string, int64_t>> sources_;
};

// Makes the values again, without writing them. Returns the record that their export would have.
std::string MakeRecord(const ExportRequest& request, ExportParts* parts, int64_t bytes,
                       WorkCounters* counters) {
  WorkerOptions workers = request.workers;
  workers.writers = 0;
  FileGroups groups(workers, counters, request.source, kFilesAtOnce, [&](int64_t) {
    if (request.progress) request.progress(*counters, bytes);
  });
  for (size_t f = 0; f < parts->files.size(); ++f) {
    ThrowIfInterrupted();
    groups.WaitForRoom();
    groups.Add(TasksOf(parts->files[f], nullptr, &parts->digests[f], &parts->crcs[f]), [] {});
  }
  groups.Finish();
  return WriteRecord(parts->plan, request, parts->files, parts->digests, parts->crcs);
}

// Throws Error (kConflict) if the existing export has other values. A plan does not determine the
// values of a folder, or of a source without a digest.
void RequireSameValues(const ExportRequest& request, ExportParts* parts, int64_t bytes,
                       std::string_view record, WorkCounters* counters) {
  const InitGraph& graph = parts->plan.graph;
  const bool may_differ =
      request.source != nullptr
          ? std::ranges::any_of(graph.logical(), IsOfSource)
          : std::ranges::any_of(graph.sources, [](const auto& s) { return s.digest.empty(); });
  if (!may_differ) return;
  if (record == MakeRecord(request, parts, bytes, counters)) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` exists and has other values", request.folder),
              "choose another folder with `-o`, or remove this one");
}

// Makes the requested shares. Returns whether the export then exists: complete, or in parts that
// other processes complete.
bool Make(const ExportRequest& request, ExportParts* parts, ExportTarget* target,
          WorkCounters* counters, ExportResult* result) {
  const SignalsWait signals;  // The caller reports what happens to finished files.
  try {
    target->Open();
    Exporter exporter(request, parts, target, counters);
    const int64_t bytes = exporter.MakeShares();
    if (target->receipts() != nullptr) result->bytes = bytes;
    result->missing = exporter.FindMissing();
    // Completing the export may have removed the receipts.
    if (target->IsTaken()) result->missing.clear();
    if (!result->missing.empty()) return !target->IsThere();
    if (target->IsTaken()) return true;
    exporter.Complete();
    return target->Commit();
  } catch (const Error& e) {
    // Another process also made these ranks, or found that all of them exist.
    if (e.code() != ExitCode::kWorld || !target->IsTaken()) throw;
    result->missing.clear();
    return true;
  }
}

// Throws Error (kUsage) if the format lacks a tensor's type.
void RequireTypes(const std::vector<const Tensor*>& tensors, const Format& format) {
  for (const Tensor* tensor : tensors) {
    if (format.reader == nullptr) return;
    if (!(ForeignNamesOf(tensor->dtype()).*format.reader->dtype).empty()) continue;
    throw Usage(fmt::format("`{}` is {}, a type that {} does not have", tensor->path(),
                            InfoOf(tensor->dtype()).name, format.name),
                fmt::format("`--to {}` keeps every type; `--drop` leaves a tensor out",
                            Formats().front()->name));
  }
}

}  // namespace

ExportResult Export(const Plan& plan, const ExportRequest& request, WorkCounters* counters) {
  const std::vector<const Tensor*> tensors = Matching(plan.graph.tensors, request.only);
  RequireTypes(tensors, *request.format);
  std::vector<FileLayout> files;
  for (const auto& [name, text] : request.extras) files.push_back({name, text});
  std::ranges::move(request.format->lay_out({plan, tensors, request.options,
                                             request.optimizer ? &*request.optimizer : nullptr,
                                             request.metadata}),
                    std::back_inserter(files));
  ExportParts parts(plan, request, std::move(files));
  RequireNamesApart(parts.files);
  int64_t boxes = 0;
  for (const FileLayout& file : parts.files) boxes += std::ssize(file.boxes);
  RequireFewBoxes(boxes);
  ExportResult result;
  result.tensors = std::ssize(tensors);
  result.files = std::ssize(parts.files);
  for (const Tensor* tensor : tensors) result.bytes += tensor->bytes();
  const std::unique_ptr<ExportTarget> target = ExportTarget::At(parts);
  std::optional<std::string> record = target->Find();
  if (!record) {
    try {
      if (Make(request, &parts, target.get(), counters, &result)) return result;
    } catch (const Error& e) {
      // Another process may have given the folder its name before this one joined it.
      if (e.code() != ExitCode::kWorld || !target->IsThere()) throw;
      record = target->Find();
      if (!record) throw;
    }
    // Another process made the whole export, perhaps with other values.
    if (!record) record = target->Find();
    if (!record && !result.missing.empty()) return result;
    if (!record)
      throw Conflict(fmt::format("`{}` could not be renamed to its final name", request.folder));
  }
  result.was_there = true;
  result.missing.clear();
  RequireSameValues(request, &parts, result.bytes, *record, counters);
  target->RemoveLeftOvers();
  return result;
}

}  // namespace shardinit
