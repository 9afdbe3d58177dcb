#include "export/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/shared_folder.h"
#include "export/record.h"
#include "export/shares.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

// Opens the folder of a file below `root`, and makes those between. Each time it goes there by
// name, so that nothing is written any more when another process has taken the folder away.
Folder FolderFor(const std::string& root, const std::string& path) {
  Folder folder = Folder::Open(root);
  if (!folder) throw SystemError("open the folder", root, ENOENT);
  for (size_t slash = 0; (slash = path.find('/', slash + 1)) != std::string::npos;) {
    folder.MakeSub(path.substr(0, slash));
  }
  const size_t last = path.rfind('/');
  return last == path.npos ? std::move(folder) : folder.OpenSub(path.substr(0, last));
}

// A file that takes its name when it is complete.
struct Writing {
  Writing(const std::string& root, const std::string& path)
      : folder(FolderFor(root, path)), file(folder, shardinit::NameOf(path)) {}
  Folder folder;
  NewFile file;
};

void WriteReceipt(const ExportParts& parts, int64_t share, const Folder& notes) {
  NewFile file(notes, ShareReceipt(share));
  file.Append(WriteShare(parts, share).dump());
  file.Commit();
}

// Takes what a share's receipt says. Returns false if there is none, or if one of its files is
// missing.
bool TakeReceipt(ExportParts* parts, int64_t share, const SharedFolder& shared) {
  std::string text;
  if (!shared.notes().Read(ShareReceipt(share), kShareReceiptLimit, &text)) return false;
  const std::string path = shared.notes().PathOf(ShareReceipt(share));
  return ReadShare(ParseJson(text, path), path, share, parts, [&](size_t f) {
    const FileLayout& file = parts->files[f];
    return FileSize(shared.files() + "/" + file.path) == file.size();
  });
}

void WriteShares(ExportParts* parts, const std::vector<int64_t>& shares, const SharedFolder& shared,
                 int64_t bytes, WorkCounters* counters) {
  const std::string root = shared.files();
  constexpr int64_t kFilesAtOnce = 16;
  FileGroups groups(parts->request.workers, counters, parts->request.source, kFilesAtOnce,
                    [&](int64_t) {
                      if (parts->request.progress) parts->request.progress(*counters, bytes);
                    });
  for (size_t f = 0; f < parts->files.size(); ++f) {
    if (!std::binary_search(shares.begin(), shares.end(), parts->share[f])) continue;
    ThrowIfInterrupted();
    groups.WaitForRoom();
    const auto writing = std::make_shared<Writing>(root, parts->files[f].path);
    BeginFile(parts->files[f], writing->file);
    groups.Add(TasksOf(parts->files[f], &writing->file, &parts->digests[f], &parts->crcs[f]),
               [writing, counters, layout = &parts->files[f], &sums = parts->crcs[f]] {
                 const Timer timer(&counters->sync_ns);
                 FinishFile(*layout, sums, writing->file);
                 writing->file.Commit();
               });
  }
  groups.Finish();
}

// Removes what killed runs left beside a file: no share is missing, so nobody needs a file that is
// not complete.
void RemoveKilled(const std::string& root, const std::string& path) {
  const Folder folder = FolderFor(root, path);
  const std::string name = shardinit::NameOf(path);
  RemoveLeftOvers(
      folder, [&](std::string_view other) { return other == name; }, Others::kAll);
}

// Writes the files that have no elements, and at last the record.
void WriteRest(ExportParts* parts, const SharedFolder& shared) {
  const std::string root = shared.files();
  for (const FileLayout& file : parts->files) RemoveKilled(root, file.path);
  RemoveKilled(root, kExportName);
  for (size_t f = 0; f < parts->files.size(); ++f) {
    if (parts->share[f] >= 0) continue;
    Writing writing(root, parts->files[f].path);
    BeginFile(parts->files[f], writing.file);
    writing.file.Commit();
  }
  Writing record(root, std::string(kExportName));
  record.file.Append(
      WriteRecord(parts->plan, parts->request, parts->files, parts->digests, parts->crcs));
  record.file.Commit();
}

// Makes what is asked for and not there, and finds which ranks are missing then.
void MakeShares(ExportParts* parts, const SharedFolder& shared, WorkCounters* counters,
                ExportResult* result) {
  std::vector<int64_t> left;
  for (const int64_t share : parts->Asked()) {
    if (!TakeReceipt(parts, share, shared)) left.push_back(share);
  }
  result->bytes = 0;
  for (size_t f = 0; f < parts->files.size(); ++f) {
    if (!std::binary_search(left.begin(), left.end(), parts->share[f])) continue;
    for (const FileBox& box : parts->files[f].boxes) result->bytes += BytesOf(box);
  }
  WriteShares(parts, left, shared, result->bytes, counters);
  for (const int64_t share : left) WriteReceipt(*parts, share, shared.notes());
  std::set<int64_t> missing;
  for (int64_t share = 0; share < parts->shares; ++share) {
    if (!TakeReceipt(parts, share, shared)) missing.insert(parts->RankOf(share));
  }
  // If the folder is complete, the receipts may have gone with the rest: then none is missing.
  if (!shared.IsTaken()) result->missing.assign(missing.begin(), missing.end());
}

}  // namespace

bool ExportRanks(const Plan& plan, const ExportRequest& request, std::vector<FileLayout> files,
                 WorkCounters* counters, ExportResult* result) {
  ExportParts parts(plan, request, std::move(files));
  SharedFolder shared(request.folder, WriteOrigin(plan, request) + request.claim);
  try {
    MakeShares(&parts, shared, counters, result);
    if (!result->missing.empty()) return false;
    if (shared.IsTaken()) return true;
    WriteRest(&parts, shared);
    return shared.Commit() || shared.IsTaken();
  } catch (const Error& e) {
    // Another process made these ranks too, or found that all are there.
    if (e.code() != ExitCode::kWorld || !shared.IsTaken()) throw;
    result->missing.clear();
    return true;
  }
}

}  // namespace shardinit
