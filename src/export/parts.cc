#include "export/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/shared_folder.h"
#include "export/record.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr size_t kReceiptLimit = size_t{1} << 30;

// The files of an export, and what is known of their bytes.
struct ExportParts {
  const Plan& plan;
  const ExportRequest& request;
  std::vector<FileLayout> files;
  std::vector<std::vector<Digest>> digests;
  std::vector<std::vector<uint32_t>> crcs;
  std::vector<bool> is_finished;  // its texts have their CRCs
  std::vector<int64_t> rank;      // that makes the file; -1: it has no elements

  ExportParts(const Plan& of, const ExportRequest& asked, std::vector<FileLayout> laid_out)
      : plan(of), request(asked), files(std::move(laid_out)) {
    int64_t next = 0;
    for (const FileLayout& file : files) {
      digests.emplace_back(file.boxes.size());
      crcs.emplace_back(file.boxes.size());
      rank.push_back(file.boxes.empty() ? -1 : next++ % plan.world_size());
    }
    is_finished.resize(files.size());
  }
};

std::string ReceiptOf(int64_t rank) { return fmt::format("rank-{:05}", rank); }

// Opens the folder of a file, and makes those above it.
Folder FolderFor(const Folder& folder, const std::string& path) {
  for (size_t slash = 0; (slash = path.find('/', slash + 1)) != std::string::npos;) {
    folder.MakeSub(path.substr(0, slash));
  }
  const size_t last = path.rfind('/');
  return last == path.npos ? Folder::Open(folder.path()) : folder.OpenSub(path.substr(0, last));
}

// A file that takes its name when it is complete.
struct Writing {
  Writing(const Folder& root, const std::string& path)
      : folder(FolderFor(root, path)), file(folder, shardinit::NameOf(path)) {}
  Folder folder;
  NewFile file;
};

void WriteReceipt(const ExportParts& parts, int64_t rank, const Folder& notes) {
  nlohmann::json receipt = nlohmann::json::array();
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (parts.rank[f] != rank) continue;
    nlohmann::json digests = nlohmann::json::array();
    for (const Digest& digest : parts.digests[f]) digests.push_back(ToHex(digest));
    receipt.push_back({{"file", f}, {"digests", digests}, {"crcs", parts.crcs[f]}});
  }
  NewFile file(notes, ReceiptOf(rank));
  file.Append(receipt.dump());
  file.Commit();
}

// Takes what a rank's receipt says. Returns false if there is none, or if one of its files is
// missing.
bool TakeReceipt(ExportParts* parts, int64_t rank, const SharedFolder& shared) {
  std::string text;
  if (!shared.notes().Read(ReceiptOf(rank), kReceiptLimit, &text)) return false;
  const std::string path = shared.notes().PathOf(ReceiptOf(rank));
  const nlohmann::json receipt = ParseJson(text, path);
  try {
    for (const nlohmann::json& entry : receipt) {
      const size_t f = entry.at("file");
      const auto& digests = entry.at("digests");
      if (f >= parts->files.size() || parts->rank[f] != rank ||
          digests.size() != parts->files[f].boxes.size()) {
        throw Error(ExitCode::kRefused, fmt::format("`{}` is damaged", path), "remove it");
      }
      const FileLayout& file = parts->files[f];
      if (FileSize(shared.files() + "/" + file.path) != file.size()) return false;
      for (size_t b = 0; b < digests.size(); ++b) {
        if (!FromHex(digests[b].get<std::string>(), &parts->digests[f][b])) return false;
      }
      parts->crcs[f] = entry.at("crcs").get<std::vector<uint32_t>>();
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ExitCode::kRefused, fmt::format("`{}` is damaged: {}", path, ComplaintOf(e)),
                "remove it");
  }
  return true;
}

void WriteRanks(ExportParts* parts, const std::vector<int64_t>& ranks, const SharedFolder& shared,
                int64_t bytes, WorkCounters* counters) {
  const Folder root = Folder::Open(shared.files());
  constexpr int64_t kFilesAtOnce = 16;
  FileGroups groups(parts->request.workers, counters, parts->request.source, kFilesAtOnce,
                    [&](int64_t) {
                      if (parts->request.progress) parts->request.progress(*counters, bytes);
                    });
  for (size_t f = 0; f < parts->files.size(); ++f) {
    if (!std::binary_search(ranks.begin(), ranks.end(), parts->rank[f])) continue;
    ThrowIfInterrupted();
    groups.WaitForRoom();
    const auto writing = std::make_shared<Writing>(root, parts->files[f].path);
    BeginFile(parts->files[f], writing->file);
    parts->is_finished[f] = true;
    groups.Add(TasksOf(parts->files[f], &writing->file, &parts->digests[f], &parts->crcs[f]),
               [writing, counters, layout = &parts->files[f], &sums = parts->crcs[f]] {
                 const Timer timer(&counters->sync_ns);
                 FinishFile(sums, layout, writing->file);
                 writing->file.Commit();
               });
  }
  groups.Finish();
}

// Removes what killed runs left beside a file: no rank is missing, so nobody needs a file that is
// not complete.
void RemoveKilled(const Folder& root, const std::string& path) {
  const Folder folder = FolderFor(root, path);
  const std::string name = shardinit::NameOf(path);
  RemoveLeftOvers(
      folder, [&](std::string_view other) { return other == name; }, Others::kAll);
}

// Writes the files that have no elements, and at last the record.
void WriteRest(ExportParts* parts, const SharedFolder& shared) {
  const Folder root = Folder::Open(shared.files());
  if (!root) return;
  for (const FileLayout& file : parts->files) RemoveKilled(root, file.path);
  for (size_t f = 0; f < parts->files.size(); ++f) {
    FileLayout& layout = parts->files[f];
    if (parts->rank[f] >= 0) {
      if (!parts->is_finished[f] && !layout.crcs.empty()) PutCrcs(parts->crcs[f], &layout);
      continue;
    }
    Writing writing(root, layout.path);
    BeginFile(layout, writing.file);
    FinishFile(parts->crcs[f], &layout, writing.file);
    writing.file.Commit();
  }
  NewFile record(root, kExportName);
  record.Append(WriteRecord(parts->plan, parts->request, parts->files, parts->digests));
  record.Commit();
}

}  // namespace

void ExportRanks(const Plan& plan, const ExportRequest& request, std::vector<FileLayout> files,
                 WorkCounters* counters, ExportResult* result) {
  ExportParts parts(plan, request, std::move(files));
  SharedFolder shared(request.folder, WriteOrigin(plan, request) + request.claim);
  std::vector<int64_t> left;
  for (const int64_t rank : *request.ranks) {
    if (!TakeReceipt(&parts, rank, shared)) left.push_back(rank);
  }
  result->bytes = 0;
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (!std::binary_search(left.begin(), left.end(), parts.rank[f])) continue;
    for (const FileBox& box : parts.files[f].boxes) result->bytes += BytesOf(box);
  }
  WriteRanks(&parts, left, shared, result->bytes, counters);
  for (const int64_t rank : left) WriteReceipt(parts, rank, shared.notes());
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    if (!TakeReceipt(&parts, rank, shared)) result->missing.push_back(rank);
  }
  if (!result->missing.empty()) return;
  WriteRest(&parts, shared);
  shared.Commit();
}

}  // namespace shardinit
