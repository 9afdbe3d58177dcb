// Exports to folders, which get their name when all files exist.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/new_file.h"
#include "base/shared_folder.h"
#include "bucket/url.h"
#include "export/record.h"
#include "export/target.h"
#include "place/folder_place.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr size_t kRecordLimit = size_t{4} << 30;

class FolderTarget : public ExportTarget {
 public:
  explicit FolderTarget(const ExportParts& parts)
      : parts_(parts),
        folder_(parts.request.folder),
        origin_(WriteOrigin(parts.plan, parts.request)) {}

  std::optional<std::string> Find() override {
    const bool has_appeared = std::exchange(has_looked_, true);
    if (!Exists(folder_) || IsEmptyFolder(folder_)) return {};
    std::string record, what = "holds something else", hint = "choose another folder with `-o`";
    bool is_other = false;
    if (IsFolder(folder_) && ReadFileIfExists(folder_ + "/" + kExportName, kRecordLimit, &record)) {
      hint += ", or remove this one";
      if (!IsRecordOf(record, origin_)) {
        what = "holds another export";
        is_other = true;
      } else {
        const auto damaged = std::ranges::find_if(parts_.files, [&](const FileLayout& file) {
          return FileSize(folder_ + "/" + file.path) != file.size();
        });
        if (damaged == parts_.files.end()) {
          // A killed run may not have synced the folder's name.
          MakeFolder(folder_);
          return record;
        }
        what = fmt::format("contains this export, but `{}` is missing or has another size",
                           damaged->path);
      }
    }
    // Another machine made it since this process began, and its files may appear here later than
    // the folder.
    if (has_appeared && !is_other) {
      throw Error(ExitCode::kWorld,
                  fmt::format("another process has made `{}`, and it {}", folder_, what),
                  "run the same command again");
    }
    throw Error(ExitCode::kConflict, fmt::format("`{}` exists and {}", folder_, what), hint);
  }

  void RemoveLeftOvers() const override { NewFolder::RemoveLeftOvers(folder_); }

 protected:
  const ExportParts& parts_;
  const std::string folder_, origin_;

 private:
  bool has_looked_ = false;
};

// Writes all files in a folder that no other process sees.
class StagedTarget : public FolderTarget {
 public:
  using FolderTarget::FolderTarget;

  void Open() override {
    folder_to_be_.emplace(folder_);
    int64_t total = 0;
    for (const FileLayout& file : parts_.files) total += file.size();
    CheckFreeSpace(folder_to_be_->folder().fd(), total, folder_);
    place_ = std::make_shared<FolderPlace>(
        std::shared_ptr<const Folder>(std::shared_ptr<void>(), &folder_to_be_->folder()),
        FolderPlace::kPrivate);
  }

  std::shared_ptr<const Place> place() const override { return place_; }

  bool Commit() override {
    std::set<std::string> folders;
    for (const FileLayout& file : parts_.files) {
      for (size_t slash = 0; (slash = file.path.find('/', slash + 1)) != std::string::npos;) {
        folders.insert(file.path.substr(0, slash));
      }
    }
    for (const std::string& folder : folders) place_->Sync(folder);
    return folder_to_be_->Commit();
  }

 private:
  std::optional<NewFolder> folder_to_be_;
  std::shared_ptr<const FolderPlace> place_;
};

// Writes files in a folder that several processes make together.
class SharedTarget : public FolderTarget {
 public:
  using FolderTarget::FolderTarget;

  void Open() override {
    shared_.emplace(folder_, Claim());
    receipts_.emplace(std::shared_ptr<const Folder>(std::shared_ptr<void>(), &shared_->notes()));
  }

  // Opens the folder by name each time, so that nothing is written after another process has taken
  // the folder away.
  std::shared_ptr<const Place> place() const override {
    Folder root = Folder::Open(shared_->files());
    if (!root) throw SystemError("open the folder", shared_->files(), ENOENT);
    return std::make_shared<FolderPlace>(std::make_shared<Folder>(std::move(root)));
  }

  int64_t SizeOf(size_t file) const override {
    return FileSize(shared_->files() + "/" + parts_.files[file].path);
  }
  bool has_empty_shares() const override { return true; }
  const Place* receipts() const override { return &*receipts_; }

  bool IsThere() const override { return Exists(folder_); }
  bool IsTaken() const override { return shared_ && shared_->IsTaken(); }
  void BeginRest() override { shared_->RemoveKilled(); }
  bool Commit() override { return shared_->Commit() || shared_->IsTaken(); }

  void RemoveLeftOvers() const override {
    FolderTarget::RemoveLeftOvers();
    SharedFolder::RemoveLeftOvers(folder_, Claim());
  }

 private:
  std::string Claim() const { return origin_ + parts_.request.claim; }

  std::optional<SharedFolder> shared_;
  std::optional<FolderPlace> receipts_;
};

}  // namespace

std::unique_ptr<ExportTarget> ExportTarget::At(const ExportParts& parts) {
  if (IsBucketUrl(parts.request.folder)) return BucketTarget(parts);
  if (parts.request.is_shared()) return std::make_unique<SharedTarget>(parts);
  return std::make_unique<StagedTarget>(parts);
}

}  // namespace shardinit
