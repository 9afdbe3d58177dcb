#include "export/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/glob.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "base/shared_folder.h"
#include "base/text.h"
#include "bucket/url.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file_tasks.h"
#include "export/bucket.h"
#include "export/parts.h"
#include "export/record.h"
#include "plan/load.h"
#include "plan/relayout.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Files that are open at once: small ones, as chunks are, must not wait for one another's disk.
constexpr int64_t kFilesAtOnce = 16;
constexpr size_t kRecordLimit = size_t{4} << 30;
// Their lines in a record are within that limit, unless tensors have very long names.
constexpr int64_t kMostBoxes = 8'000'000;

// Returns whether the folder holds this export, whole. Throws if anything else is there: Error
// (kConflict), or (kWorld) if it `has_appeared` since this process began and lacks a file, which
// may be seen later than the folder if another machine made it.
bool IsThere(const std::string& folder, const std::string& origin,
             const std::vector<FileLayout>& files, bool has_appeared) {
  if (!Exists(folder) || IsEmptyFolder(folder)) return false;
  std::string record, what = "holds something else", hint = "choose another folder with `-o`";
  bool is_other = false;
  if (IsFolder(folder) && ReadFileIfExists(folder + "/" + kExportName, kRecordLimit, &record)) {
    hint += ", or remove this one";
    if (!IsRecordOf(record, origin)) {
      what = "holds another export";
      is_other = true;
    } else {
      const auto damaged = std::find_if(files.begin(), files.end(), [&](const FileLayout& file) {
        return FileSize(folder + "/" + file.path) != file.size();
      });
      if (damaged == files.end()) {
        // A killed run may have left the folder's name off the disk.
        MakeFolder(folder);
        return true;
      }
      what =
          fmt::format("holds this export, but `{}` is missing or has another size", damaged->path);
    }
  }
  if (has_appeared && !is_other) {
    throw Error(ExitCode::kWorld,
                fmt::format("`{}` was made by another process meanwhile, and {}", folder, what),
                "run the same command again");
  }
  throw Error(ExitCode::kConflict, fmt::format("`{}` exists and {}", folder, what), hint);
}

// Files by which readers, of this tool and of others, recognize a folder or a part of a model, in
// lower case. A folder of such a name makes an export unreadable.
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

std::string InLowerCase(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// Refuses a tensor whose name is that of a file beside the tensors, or of one that readers look
// for, where formats have a folder or a file for each tensor.
void RequireNamesApart(const std::vector<FileLayout>& files) {
  std::set<std::string> names = {kExportName, kExportNotes};
  for (const FileLayout& file : files) {
    if (file.boxes.empty()) names.insert(InLowerCase(file.path));
  }
  std::string_view before;  // the folder of a tensor may have millions of files
  for (const FileLayout& file : files) {
    if (file.boxes.empty()) continue;
    const std::string_view stored = std::string_view(file.path).substr(0, file.path.find('/'));
    if (stored == before) continue;
    before = stored;
    const std::string folder = InLowerCase(std::string(stored));
    const bool is_of_format = names.contains(folder);
    const bool is_sign =
        stored.size() < file.path.size() && std::ranges::any_of(kSigns, [&](auto pattern) {
          return Matches(pattern, folder, Stars::kRuns);
        });
    if (!is_sign && !is_of_format) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} is the name of a tensor, and of a file {}",
                    Quote(file.boxes.front().tensor->path()),
                    is_of_format ? "of the format" : "that readers of such a folder look for"),
        "leave it out, with `convert --drop` or `export --only`, or store it under another name "
        "with a layout of the spec");
  }
}

// Refuses an export whose record nobody could read.
void RequireFewBoxes(const std::vector<FileLayout>& files) {
  int64_t boxes = 0;
  for (const FileLayout& file : files) boxes += std::ssize(file.boxes);
  if (boxes <= kMostBoxes) return;
  throw Error(
      ExitCode::kUsage,
      fmt::format("the files of this export would have {} pieces, more than {}", Grouped(boxes),
                  Grouped(kMostBoxes)),
      "store fewer and larger tensors, with a layout that joins layers or experts, or use a "
      "smaller `--mesh`");
}

// Makes the values once more, without writing them, and returns the record of an export of them.
std::string MakeRecord(const Plan& plan, const ExportRequest& request,
                       const std::vector<FileLayout>& files, int64_t bytes,
                       WorkCounters* counters) {
  std::vector<std::vector<Digest>> digests(files.size());
  std::vector<std::vector<uint32_t>> crcs(files.size());
  WorkerOptions workers = request.workers;
  workers.writers = 0;
  FileGroups groups(workers, counters, request.source, kFilesAtOnce, [&](int64_t) {
    if (request.progress) request.progress(*counters, bytes);
  });
  for (size_t f = 0; f < files.size(); ++f) {
    ThrowIfInterrupted();
    digests[f].resize(files[f].boxes.size());
    crcs[f].resize(files[f].boxes.size());
    std::vector<BoxTask> tasks;
    for (size_t b = 0; b < files[f].boxes.size(); ++b) {
      const FileBox& box = files[f].boxes[b];
      tasks.push_back({box.tensor, box.box, {}, &digests[f][b]});
      if (files[f].has_crcs()) tasks.back().crc = &crcs[f][b];
    }
    groups.WaitForRoom();
    groups.Add(std::move(tasks), [] {});
  }
  groups.Finish();
  return WriteRecord(plan, request, files, digests, crcs);
}

// A plan does not say what the values of a folder are, nor of a source without a digest. Throws
// Error (kConflict) if the export that is there has other ones.
void RequireSameValues(const Plan& plan, const ExportRequest& request,
                       const std::vector<FileLayout>& files, int64_t bytes, std::string_view record,
                       WorkCounters* counters) {
  const bool may_differ =
      request.source != nullptr
          ? std::ranges::any_of(plan.graph.logical(), IsOfSource)
          : std::ranges::any_of(plan.graph.sources, [](const auto& s) { return s.digest.empty(); });
  if (!may_differ) return;
  if (record == MakeRecord(plan, request, files, bytes, counters)) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` exists and has other values", request.folder),
              "choose another folder with `-o`, or remove this one");
}

// Writes the files, whose texts get the CRCs of boxes, and at last their record.
void WriteFiles(const Plan& plan, const ExportRequest& request,
                const std::vector<FileLayout>& files, int64_t bytes, const Folder& folder,
                WorkCounters* counters) {
  std::set<std::string> folders;
  std::vector<std::vector<Digest>> digests(files.size());
  std::vector<std::vector<uint32_t>> crcs(files.size());
  {
    FileGroups groups(request.workers, counters, request.source, kFilesAtOnce, [&](int64_t) {
      if (request.progress) request.progress(*counters, bytes);
    });
    for (size_t f = 0; f < files.size(); ++f) {
      ThrowIfInterrupted();
      const std::string& path = files[f].path;
      for (size_t slash = 0; (slash = path.find('/', slash + 1)) != std::string::npos;) {
        const std::string parent = path.substr(0, slash);
        if (folders.insert(parent).second) folder.MakeSub(parent);
      }
      groups.WaitForRoom();
      const auto file = std::make_shared<OutputFile>(folder, path);
      BeginFile(files[f], *file);
      groups.Add(TasksOf(files[f], file.get(), &digests[f], &crcs[f]),
                 [file, counters, layout = &files[f], &sums = crcs[f]] {
                   const Timer timer(&counters->sync_ns);
                   FinishFile(*layout, sums, *file);
                   file->Sync();
                 });
    }
    groups.Finish();
  }
  NewFile record(folder, kExportName);
  record.Append(WriteRecord(plan, request, files, digests, crcs));
  record.Commit();
  for (const std::string& parent : folders) folder.OpenSub(parent).Sync();
}

}  // namespace

ExportResult Export(const Plan& plan, const ExportRequest& request, WorkCounters* counters) {
  const std::vector<const Tensor*> tensors = Matching(plan.graph.tensors, request.only);
  const LayoutRequest layout = {plan, tensors, request.options,
                                request.optimizer ? &*request.optimizer : nullptr,
                                request.metadata};
  std::vector<FileLayout> files = request.format->lay_out(layout);
  RequireNamesApart(files);
  RequireFewBoxes(files);
  ExportResult result;
  result.tensors = static_cast<int64_t>(tensors.size());
  result.files = static_cast<int64_t>(files.size());
  for (const Tensor* tensor : tensors) result.bytes += tensor->bytes();
  const int64_t all = result.bytes;
  if (IsBucketUrl(request.folder)) {
    const auto record = ExportInBucket(plan, request, std::move(files), counters, &result);
    result.was_there = record.has_value();
    if (record) {
      RequireSameValues(plan, request, request.format->lay_out(layout), all, *record, counters);
    }
    return result;
  }
  bool has_appeared = false;
  const auto find = [&](const std::vector<FileLayout>& files) {
    result.was_there = IsThere(request.folder, WriteOrigin(plan, request), files, has_appeared);
    if (!result.was_there) return false;
    std::string record;
    ReadFileIfExists(request.folder + "/" + kExportName, kRecordLimit, &record);
    RequireSameValues(plan, request, files, all, record, counters);
    NewFolder::RemoveLeftOvers(request.folder);
    if (request.is_shared()) {
      SharedFolder::RemoveLeftOvers(request.folder, WriteOrigin(plan, request) + request.claim);
    }
    return true;
  };
  if (find(files)) return result;
  has_appeared = true;
  if (request.is_shared()) {
    try {
      if (ExportRanks(plan, request, std::move(files), counters, &result)) return result;
    } catch (const Error& e) {
      // Another process may have given the folder its name before this one joined it.
      if (e.code() != ExitCode::kWorld || !find(request.format->lay_out(layout))) throw;
      return result;
    }
    // So may a run that makes all of it, be it of other values.
    if (Exists(request.folder) && find(request.format->lay_out(layout))) result.missing.clear();
    if (result.was_there || !result.missing.empty()) return result;
    throw Conflict(fmt::format("`{}` could not get its name", request.folder));
  }
  // All files are written beside the folder, which gets its name when all are there.
  NewFolder target(request.folder);
  int64_t total = 0;
  for (const FileLayout& file : files) total += file.size();
  CheckFreeSpace(target.folder().fd(), total, request.folder);
  WriteFiles(plan, request, files, result.bytes, target.folder(), counters);
  if (target.Commit()) return result;
  // If several equal exports run at once, one gets the name, and the others find it there.
  if (find(files)) return result;
  throw Conflict(fmt::format("`{}` has appeared meanwhile", request.folder));
}

}  // namespace shardinit
