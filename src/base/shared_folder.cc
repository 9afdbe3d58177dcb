#include "base/shared_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/new_file.h"
#include "base/take_folder.h"

namespace shardinit {
namespace {

constexpr char kClaim[] = "claim", kFiles[] = "files", kNotes[] = "notes";

std::string PartsOf(const std::string& path) { return path + ".parts"; }

// Returns whether the folder has this claim; false if it has none. Throws if it has another one.
bool IsClaimed(const Folder& folder, const std::string& claim) {
  std::string there;
  const Folder::Found found = folder.Find(kClaim, claim.size() + 1, &there);
  if (found == Folder::Found::kNothing) return false;
  if (found == Folder::Found::kText && there == claim) return true;
  throw Error(
      ExitCode::kConflict,
      fmt::format("`{}` was started from another source, or with other options", folder.path()),
      "give all runs the same options, and copies of the source with its times, as of `cp -a`; or "
      "remove the folder to start over");
}

// Throws Error if the folder, which had no claim, contains files of somebody else.
void RequireNobodys(const Folder& folder, const std::string& claim) {
  std::string other;
  folder.ForEachName([&](const std::string& name) {
    if (name != kClaim && NameOfTemporary(name) != kClaim) other = name;
  });
  // Another process, perhaps on another machine, may have created the claim meanwhile.
  if (other.empty() || (folder.ExistsSoon(kClaim) && IsClaimed(folder, claim))) return;
  throw Error(
      ExitCode::kConflict,
      fmt::format("`{}` exists, but does not come from a run that makes parts: it contains `{}`",
                  folder.path(), other),
      "move it away, or choose another output folder with `-o`");
}

// Removes the temporary files of processes that were still writing when the folder got its name.
// They wrote files that already exist.
void RemoveTemporaries(const Folder& folder) {
  if (!folder) return;  // It has been moved away since.
  Walk(folder.path(), [&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFile && !NameOfTemporary(NameOf(name)).empty()) folder.Remove(name);
    return true;
  });
}

// Removes the rest after the files got their name. The claim, which identifies the owner of the
// rest, goes last.
void RemoveRest(const Folder& parent, const Folder& folder, const std::string& name) {
  for (const char* const sub : {kNotes, kFiles}) {
    if (folder.Exists(sub)) RemoveTree(folder, sub);
    if (folder.Exists(sub)) return;  // The next run removes it.
  }
  std::vector<std::string> temporaries;  // of processes that were killed before they had a claim
  folder.ForEachName([&](const std::string& sub) {
    if (!NameOfTemporary(sub).empty()) temporaries.push_back(sub);
  });
  for (const std::string& sub : temporaries) folder.Remove(sub);
  folder.Sync();  // Otherwise a power loss could leave the rest without the claim.
  folder.Remove(kClaim);
  RemoveTree(parent, name);
}

}  // namespace

SharedFolder::SharedFolder(const std::string& path, const std::string& claim)
    : path_(PathToTake(path)),
      parent_(Folder::Make(FolderOf(path_))),
      folder_(parent_.MakeSub(NameOf(PartsOf(path_)))) {
  if (!IsClaimed(folder_, claim)) {
    RequireNobodys(folder_, claim);
    NewFile file(folder_, kClaim);
    file.Append(claim);
    // Only the first of several processes succeeds.
    file.CommitNew();
  }
  // Processes that have seen the same claim create one folder.
  if (!IsClaimed(folder_, claim) || (Exists(path_) && !IsEmptyFolder(path_))) {
    throw Error(
        ExitCode::kWorld,
        fmt::format("another process has finished `{}` or removed `{}`", path_, folder_.path()),
        "run the same command again");
  }
  folder_.MakeSub(kFiles);
  notes_ = folder_.MakeSub(kNotes);
}

void SharedFolder::RemoveLeftOvers(const std::string& path, const std::string& claim) {
  const std::string plain = PathToTake(path);
  std::error_code error;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(PartsOf(plain), error)))
    return;
  const Folder folder = Folder::Open(PartsOf(plain));
  if (!folder) return;
  if (!IsEmptyFolder(folder.path()) && !IsClaimed(folder, claim)) return;
  const Folder parent = Folder::Open(FolderOf(plain));
  RemoveTemporaries(parent.OpenSub(NameOf(plain)));
  RemoveRest(parent, folder, NameOf(PartsOf(plain)));
}

std::string SharedFolder::files() const { return fmt::format("{}/{}", PartsOf(path_), kFiles); }

void SharedFolder::RemoveKilled() const {
  const Folder files = folder_.OpenSub(kFiles);
  const auto remove_from = [](const Folder& folder) {
    shardinit::RemoveLeftOvers(
        folder, [](std::string_view) { return true; }, Others::kAll);
  };
  remove_from(files);
  files.Walk([&](const std::string& name, NameKind kind) {
    if (kind == NameKind::kFolder) remove_from(files.OpenSub(name));
    return true;
  });
}

bool SharedFolder::IsTaken() const { return !folder_.Exists(kFiles); }

bool SharedFolder::Commit() {
  const Folder files = folder_.OpenSub(kFiles);
  if (!files) return false;
  files.Sync();
  try {
    if (!TakeFolderName(folder_, kFiles, parent_, path_)) return false;
  } catch (const Error&) {
    if (folder_.Exists(kFiles)) throw;
    return false;
  }
  RemoveTemporaries(parent_.OpenSub(NameOf(path_)));
  RemoveRest(parent_, folder_, NameOf(PartsOf(path_)));
  return true;
}

}  // namespace shardinit
