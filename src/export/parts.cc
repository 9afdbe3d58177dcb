#include "export/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked_math.h"
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

// Files are made, and noted in receipts, by shares: each has the files that are dealt to it in
// turn, and is itself dealt to a rank in turn. A few ranks have several shares each, so that more
// jobs than ranks have something to do; millions of files need no millions of receipts.
int64_t CountShares(int64_t files, int64_t ranks) {
  constexpr int64_t kEnough = 1024;
  const int64_t for_files = CeilDiv(files, ranks);
  return ranks * std::max<int64_t>(1, std::min(for_files, kEnough / ranks));
}

// The files of an export, and what is known of their bytes.
struct ExportParts {
  const Plan& plan;
  const ExportRequest& request;
  std::vector<FileLayout> files;
  std::vector<std::vector<Digest>> digests;
  std::vector<std::vector<uint32_t>> crcs;
  std::vector<bool> is_finished;  // its texts have their CRCs
  std::vector<int64_t> share;     // that has the file; -1: it has no elements
  int64_t shares = 0;

  ExportParts(const Plan& of, const ExportRequest& asked, std::vector<FileLayout> laid_out)
      : plan(of), request(asked), files(std::move(laid_out)) {
    shares = CountShares(std::count_if(files.begin(), files.end(),
                                       [](const FileLayout& file) { return !file.boxes.empty(); }),
                         plan.world_size());
    int64_t next = 0;
    for (const FileLayout& file : files) {
      digests.emplace_back(file.boxes.size());
      crcs.emplace_back(file.boxes.size());
      share.push_back(file.boxes.empty() ? -1 : next++ % shares);
    }
    is_finished.resize(files.size());
  }

  int64_t RankOf(int64_t of) const { return of % plan.world_size(); }
};

// Returns the shares that the request asks for, ascending.
std::vector<int64_t> AskedShares(const ExportParts& parts) {
  std::vector<int64_t> asked;
  const ExportRequest& request = parts.request;
  if (!request.part) {
    for (int64_t share = 0; share < parts.shares; ++share) {
      if (std::binary_search(request.ranks->begin(), request.ranks->end(), parts.RankOf(share))) {
        asked.push_back(share);
      }
    }
    return asked;
  }
  std::vector<int64_t> bytes(static_cast<size_t>(parts.shares));
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (parts.share[f] >= 0) bytes[static_cast<size_t>(parts.share[f])] += parts.files[f].size();
  }
  const std::vector<int64_t> first = CutInParts(std::move(bytes), request.part->count);
  const auto index = static_cast<size_t>(request.part->index);
  for (int64_t share = first[index]; share < first[index + 1]; ++share) asked.push_back(share);
  return asked;
}

std::string ReceiptOf(int64_t share) { return fmt::format("share-{:05}", share); }

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

void WriteReceipt(const ExportParts& parts, int64_t share, const Folder& notes) {
  nlohmann::json receipt = nlohmann::json::array();
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (parts.share[f] != share) continue;
    nlohmann::json digests = nlohmann::json::array();
    for (const Digest& digest : parts.digests[f]) digests.push_back(ToHex(digest));
    receipt.push_back({{"file", f}, {"digests", digests}, {"crcs", parts.crcs[f]}});
  }
  NewFile file(notes, ReceiptOf(share));
  file.Append(receipt.dump());
  file.Commit();
}

// Takes what a share's receipt says. Returns false if there is none, or if one of its files is
// missing.
bool TakeReceipt(ExportParts* parts, int64_t share, const SharedFolder& shared) {
  std::string text;
  if (!shared.notes().Read(ReceiptOf(share), kReceiptLimit, &text)) return false;
  const std::string path = shared.notes().PathOf(ReceiptOf(share));
  const nlohmann::json receipt = ParseJson(text, path);
  try {
    for (const nlohmann::json& entry : receipt) {
      const size_t f = entry.at("file");
      const auto& digests = entry.at("digests");
      if (f >= parts->files.size() || parts->share[f] != share ||
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

void WriteShares(ExportParts* parts, const std::vector<int64_t>& shares, const SharedFolder& shared,
                 int64_t bytes, WorkCounters* counters) {
  const Folder root = Folder::Open(shared.files());
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

// Removes what killed runs left beside a file: no share is missing, so nobody needs a file that is
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
  RemoveKilled(root, kExportName);
  for (size_t f = 0; f < parts->files.size(); ++f) {
    FileLayout& layout = parts->files[f];
    if (parts->share[f] >= 0) {
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
  for (const int64_t share : AskedShares(parts)) {
    if (!TakeReceipt(&parts, share, shared)) left.push_back(share);
  }
  result->bytes = 0;
  for (size_t f = 0; f < parts.files.size(); ++f) {
    if (!std::binary_search(left.begin(), left.end(), parts.share[f])) continue;
    for (const FileBox& box : parts.files[f].boxes) result->bytes += BytesOf(box);
  }
  WriteShares(&parts, left, shared, result->bytes, counters);
  for (const int64_t share : left) WriteReceipt(parts, share, shared.notes());
  std::set<int64_t> missing;
  for (int64_t share = 0; share < parts.shares; ++share) {
    if (!TakeReceipt(&parts, share, shared)) missing.insert(parts.RankOf(share));
  }
  result->missing.assign(missing.begin(), missing.end());
  if (!missing.empty()) return;
  WriteRest(&parts, shared);
  shared.Commit();
}

}  // namespace shardinit
