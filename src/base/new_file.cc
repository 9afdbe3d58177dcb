// One file, because new files, new folders, staged folders and leftovers share temporary names and
// locks.
#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/take_folder.h"

namespace shardinit {
namespace {

constexpr time_t kOldSeconds = time_t{6} * 3600;  // since the last write
constexpr size_t kDigits = 16;

// Returns the boot id of the running kernel, which reveals nothing about it. If it is unreadable,
// every process counts as a machine of its own, whose leftovers stay for hours.
const std::string& KernelId() {
  static const std::string id = [] {
    const std::string boot = ReadKernelFile("/proc/sys/kernel/random/boot_id");
    return boot.empty() ? fmt::format("{:016x}", RandomBits()) : boot;
  }();
  return id;
}

// Returns an id of everybody who sees the locks of a folder's files: the kernel that keeps them, on
// this file system. Mounts of one folder in user space, such as FUSE mounts, each have their own
// locks.
std::string OwnerIn(const Folder& folder) {
  struct stat info;
  const uint64_t device = fstat(folder.fd(), &info) == 0 ? info.st_dev : RandomBits();
  return ToHex(Sha256Of(fmt::format("shardinit: temporary files of a kernel and a mount\n{} {}",
                                    KernelId(), device)))
      .substr(0, kDigits);
}

// Returns `.NAME.tmp-OWNER-RANDOM`.
std::string TemporaryName(const Folder& folder, std::string_view name) {
  return fmt::format(".{}.tmp-{}-{:016x}", name, OwnerIn(folder), RandomBits());
}

struct Temporary {
  std::string_view name, owner;  // both empty: not a temporary name
};

Temporary ParseTemporary(std::string_view file) {
  constexpr std::string_view kInfix = ".tmp-";
  constexpr size_t kRest = kInfix.size() + 2 * kDigits + 1;
  if (file.size() <= 1 + kRest || file[0] != '.') return {};
  const std::string_view rest = file.substr(file.size() - kRest);
  const std::string_view owner = rest.substr(kInfix.size(), kDigits);
  const std::string_view random = rest.substr(kInfix.size() + kDigits + 1);
  constexpr std::string_view kHex = "0123456789abcdef";
  if (!rest.starts_with(kInfix) || owner.find_first_not_of(kHex) != owner.npos ||
      rest[kInfix.size() + kDigits] != '-' || random.find_first_not_of(kHex) != random.npos) {
    return {};
  }
  return {file.substr(1, file.size() - kRest - 1), owner};
}

// Calls `visit` with the temporary names in a folder for whose final names `is_ours` returns true.
template <typename P, typename F>
void ForEachTemporary(const Folder& folder, P is_ours, F visit) try {
  const std::string self = folder ? OwnerIn(folder) : std::string();
  folder.ForEachName([&](const std::string& file) {
    const Temporary temporary = ParseTemporary(file);
    if (!temporary.name.empty() && is_ours(temporary.name)) {
      visit(file, temporary.owner == self);
    }
  });
} catch (const Error&) {
  // An unreadable folder keeps its leftovers.
}

// Tries to lock the file. On a file system without locks, returns true, so that nothing is removed.
bool IsLocked(int fd) { return flock(fd, LOCK_EX | LOCK_NB) != 0; }

// Creates a new file with a temporary name.
std::pair<std::string, Fd> MakeTemporaryFile(const Folder& folder, const std::string& name) {
  for (int turn = 0;; ++turn) {
    std::string temporary = TemporaryName(folder, name);
    Fd fd = OpenAt(folder.fd(), temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!fd && errno == EEXIST) continue;
    if (!fd) throw SystemError("create a file in", folder.path());
    // The lock shows RemoveLeftOvers that the owner is alive. If RemoveLeftOvers ran between our
    // two calls, the link count shows its unlink, and we try again. File systems without locks need
    // no lock, since nothing is removed there.
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    struct stat info;
    const bool is_known = fstat(fd.get(), &info) == 0;
    // A file that another machine removed is stale. Give up on a file system where every file is
    // stale.
    const bool is_removed = is_known ? info.st_nlink == 0 : errno == ESTALE && turn < 10;
    if (!is_removed) return {temporary, std::move(fd)};
    unlinkat(folder.fd(), temporary.c_str(), 0);  // It may still exist.
  }
}

// Returns whether a temporary file or folder for `name`, whose lock is free, is a leftover; `last`
// is its last change. A free lock counts only if locks are visible through other descriptors, which
// not every file system that accepts locks ensures. Otherwise hours must have passed, by the file
// system's clock.
bool IsLeftOver(const Folder& folder, std::string_view name, bool own, time_t last) {
  const SignalsWait signals;
  const auto [probe, fd] = MakeTemporaryFile(folder, std::string(name));
  struct stat info;
  const bool is_old = fstat(fd.get(), &info) == 0 && info.st_mtime - last >= kOldSeconds;
  const Fd again = OpenAt(folder.fd(), probe, O_RDWR | O_NOFOLLOW);
  const bool has_locks =
      again && flock(again.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  unlinkat(folder.fd(), probe.c_str(), 0);
  return is_old || (own && has_locks);
}

// Returns the time of the last change to a folder or anything in it.
time_t LastChange(const std::string& path) {
  struct stat info;
  time_t last = stat(path.c_str(), &info) == 0 ? info.st_mtime : 0;
  Walk(path, [&](const std::string& name, NameKind) {
    const std::string inside = fmt::format("{}/{}", path, name);
    if (lstat(inside.c_str(), &info) == 0) last = std::max(last, info.st_mtime);
    return true;
  });
  return last;
}

void RequireFree(const std::string& path) {
  if (!Exists(path) || IsEmptyFolder(path)) return;
  throw Conflict(fmt::format("`{}` exists", path));
}

// Returns a path through the folder's descriptor.
std::string ProcPath(const Folder& folder, const std::string& name) {
  return fmt::format("/proc/self/fd/{}/{}", folder.fd(), name);
}

// Removes the folders for `name` that killed runs left, and the probe files of runs that were
// killed while they looked for such folders. Entries that cannot be removed stay.
void RemoveFolderLeftOvers(const Folder& parent, const std::string& name) {
  const auto is_ours = [&](std::string_view other) { return other == name; };
  ForEachTemporary(parent, is_ours, [&](const std::string& file, bool own) {
    try {
      const Folder old = parent.OpenSub(file);
      if (!old || IsLocked(old.fd())) return;
      if (IsLeftOver(parent, name, own, LastChange(ProcPath(parent, file)))) {
        RemoveTree(parent, file);
      }
    } catch (const std::exception&) {
      // The folder stays.
    }
  });
  RemoveLeftOvers(parent, is_ours, Others::kOld);
}

// Creates a new folder with a temporary name and a lock that shows that its owner is alive.
std::pair<std::string, Folder> MakeTemporaryFolder(const Folder& parent, const std::string& name,
                                                   mode_t mode) {
  while (true) {
    std::string temporary = TemporaryName(parent, name);
    if (mkdirat(parent.fd(), temporary.c_str(), mode) != 0) {
      throw SystemError("create a folder in", parent.path());
    }
    try {
      Folder folder = parent.OpenSub(temporary);
      // Another process may have removed it between the calls, as for NewFile.
      if (folder && (flock(folder.fd(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
          parent.Exists(temporary)) {
        return {std::move(temporary), std::move(folder)};
      }
    } catch (const Error&) {
      unlinkat(parent.fd(), temporary.c_str(), AT_REMOVEDIR);
      throw;
    }
  }
}

// Renames a folder of ours to a temporary name and removes it. If this process is killed in
// between, the rest is a recognizable leftover.
void RemoveStaged(const Folder& parent, const std::string& name, const std::string& path) {
  try {
    const std::string temporary = TemporaryName(parent, shardinit::NameOf(path));
    if (renameat(parent.fd(), name.c_str(), parent.fd(), temporary.c_str()) != 0) {
      return RemoveTree(parent, name);
    }
    parent.Sync();  // Otherwise, after a power loss, the name could be back without the token.
    RemoveTree(parent, temporary);
  } catch (const Error&) {
    // The next run removes the rest.
  }
}

// Names in the folder next to `path`: the staged checkpoint and the token file.
constexpr char kStaged[] = "checkpoint", kToken[] = "token";

std::string NameOfStaged(const std::string& path, std::string_view token, const Digest& key) {
  return fmt::format(".{}.part-{}", shardinit::NameOf(path),
                     ToHex(Sha256Of(fmt::format("{}{}", token, ToHex(key)))).substr(0, kDigits));
}

// Opens a staged folder that this user created for this key, and to which nobody else can have
// written.
Folder OpenStaged(const Folder& parent, const std::string& name, const std::string& path,
                  const Digest& key) try {
  Folder folder = parent.OpenSub(name);
  struct stat info, token_info;
  std::string token;
  if (!folder || fstat(folder.fd(), &info) != 0 || info.st_uid != geteuid() ||
      (info.st_mode & 0777) != 0700 || !folder.Look(kToken, &token_info) ||
      token_info.st_uid != geteuid() || !folder.Read(kToken, 4096, &token) ||
      NameOfStaged(path, token, key) != name) {
    return {};
  }
  return folder;
} catch (const Error&) {
  return {};  // not a folder to resume
}

// Returns the names of all staged folders, including those in use.
std::vector<std::string> StagedIn(const Folder& parent, const std::string& path,
                                  const Digest& key) {
  std::vector<std::string> names;
  const std::string start = fmt::format(".{}.part-", shardinit::NameOf(path));
  parent.ForEachName([&](const std::string& name) {
    if (name.starts_with(start) && OpenStaged(parent, name, path, key)) names.push_back(name);
  });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

NewFile::Temporary NewFile::MakeTemporary(const Folder& folder, const std::string& name) {
  SignalsWait signals;
  auto [temporary, fd] = MakeTemporaryFile(folder, name);
  return {std::move(signals), std::move(temporary), std::move(fd)};
}

NewFile::NewFile(const Folder& folder, const std::string& name)
    : NewFile(folder, name, MakeTemporary(folder, name)) {}

NewFile::NewFile(const Folder& folder, const std::string& name, Temporary temporary)
    : OutputFile(folder.PathOf(name), std::move(temporary.fd)),
      folder_(folder),
      name_(name),
      temporary_(std::move(temporary.name)) {}

NewFile::~NewFile() {
  if (!temporary_.empty()) unlinkat(folder_.fd(), temporary_.c_str(), 0);
}

void NewFile::TakeName() {
  if (renameat(folder_.fd(), temporary_.c_str(), folder_.fd(), name_.c_str()) != 0) {
    const int error = errno;
    // The descriptor does not know the size: FUSE reports none for a file that another mount
    // removed.
    if (error != ENOENT || folder_.FileSize(name_) != size()) {
      throw SystemError("create", path(), error);
    }
  }
  temporary_.clear();
}

void NewFile::Commit(const std::function<void()>& before_name) {
  CommitUnsynced(before_name);
  folder_.Sync();
}

void NewFile::CommitUnsynced(const std::function<void()>& before_name) {
  Sync();
  if (before_name) before_name();
  TakeName();
}

bool NewFile::CommitNew() {
  Sync();
  const int folder = folder_.fd();
  const char *from = temporary_.c_str(), *to = name_.c_str();
  // Some file systems support renameat2 with this flag, others only linkat. This is a system call
  // because glibc before 2.28 has no function for it.
  if (syscall(SYS_renameat2, folder, from, folder, to, RENAME_NOREPLACE) == 0) {
    temporary_.clear();
    folder_.Sync();
    return true;
  }
  if (errno != EEXIST) {
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
      const int error = errno;
      // Another process may have finished the folder and removed this file.
      if (error == ENOENT && folder_.ExistsSoon(name_)) return false;
      throw SystemError("create", path(), error);
    }
    if (linkat(folder, from, folder, to, 0) == 0) {
      unlinkat(folder, from, 0);
      temporary_.clear();
      folder_.Sync();
      return true;
    }
    // If neither works, an empty file announces that its creator will replace it.
    if (errno != EEXIST) {
      if (OpenAt(folder, name_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)) {
        TakeName();
        folder_.Sync();
        return true;
      }
      if (errno != EEXIST) throw SystemError("create", path());
    }
  }
  folder_.AwaitTaken(name_);
  // A file that stays empty is from a killed process.
  for (int i = 0; i < 100 && folder_.FileSize(name_) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (folder_.FileSize(name_) != 0) return false;
  TakeName();
  folder_.Sync();
  return true;
}

NewFolder::NewFolder(const std::string& path)
    : path_(PathToTake(path)), parent_(Folder::Make(FolderOf(path_))) {
  RemoveFolderLeftOvers(parent_, NameOf(path_));
  std::tie(temporary_, folder_) = MakeTemporaryFolder(parent_, NameOf(path_), 0777);
}

void NewFolder::RemoveLeftOvers(const std::string& path) {
  const std::string plain = path.substr(0, path.find_last_not_of('/') + 1);
  RemoveFolderLeftOvers(Folder::Open(FolderOf(plain)), NameOf(plain));
}

NewFolder::~NewFolder() {
  if (temporary_.empty()) return;
  try {
    RemoveTree(parent_, temporary_);
  } catch (const Error&) {
    // The next run removes the rest.
  }
}

bool NewFolder::Commit() {
  folder_.Sync();
  if (!TakeFolderName(parent_, temporary_, parent_, path_)) return false;
  temporary_.clear();
  return true;
}

StagedFolder::StagedFolder(const std::string& path, const Digest& key,
                           const std::function<bool(const std::string& staged)>& may_go_on)
    : path_(PathToTake(path)), parent_(Folder::Make(FolderOf(path_))) {
  RequireFree(path_);
  RemoveFolderLeftOvers(parent_, NameOf(path_));
  const auto staged_in = [&](const std::string& name) {
    return fmt::format("{}/{}/{}", FolderOf(path_), name, kStaged);
  };
  for (const std::string& name : StagedIn(parent_, path_, key)) {
    Folder old = OpenStaged(parent_, name, path_, key);
    if (!old) continue;
    if (flock(old.fd(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw Error(ExitCode::kConflict, fmt::format("another process is making `{}`", path_),
                  "wait for it, or choose another folder with `-o`");
    }
    // The last owner of the lock may have removed the folder.
    if (!OpenStaged(parent_, name, path_, key) || !may_go_on(staged_in(name))) continue;
    name_ = name;
    folder_ = std::move(old);
    is_old_ = true;
    break;
  }
  // The folder gets its name only when the token is in it. Without a token it would belong to
  // nobody, and no later process would remove it.
  if (!is_old_) {
    const std::string token = fmt::format("{:016x}{:016x}\n", RandomBits(), RandomBits());
    name_ = NameOfStaged(path_, token, key);
    std::string temporary;
    std::tie(temporary, folder_) = MakeTemporaryFolder(parent_, NameOf(path_), 0700);
    try {
      OutputFile file(folder_, kToken);
      file.Append(token);
      file.Sync();
      folder_.MakeSub(kStaged);
      folder_.Sync();
      if (renameat(parent_.fd(), temporary.c_str(), parent_.fd(), name_.c_str()) != 0) {
        throw SystemError("create a folder in", parent_.path());
      }
    } catch (...) {
      RemoveTree(parent_, temporary);
      throw;
    }
  }
  staged_ = staged_in(name_);
  folder_.MakeSub(kStaged);  // A resumed folder may have lost it in a power loss.
  folder_.Sync();
  parent_.Sync();
}

void StagedFolder::RemoveLeftOvers(const std::string& path, const Digest& key) {
  const std::string plain = PathToTake(path);
  const Folder parent = Folder::Open(FolderOf(plain));
  for (const std::string& name : StagedIn(parent, plain, key)) {
    const Folder old = OpenStaged(parent, name, plain, key);
    if (old && !IsLocked(old.fd())) RemoveStaged(parent, name, plain);
  }
  RemoveFolderLeftOvers(parent, shardinit::NameOf(plain));
}

void StagedFolder::Remove() { RemoveStaged(parent_, name_, path_); }

void StagedFolder::Commit() {
  folder_.OpenSub(kStaged).Sync();
  if (!TakeFolderName(folder_, kStaged, parent_, path_)) {
    throw Conflict(fmt::format("`{}` has appeared meanwhile", path_));
  }
  Remove();
}

std::string_view NameOfTemporary(std::string_view file) { return ParseTemporary(file).name; }

void RemoveLeftOvers(const Folder& folder,
                     const std::function<bool(std::string_view name)>& is_ours, Others others) {
  ForEachTemporary(folder, is_ours, [&](const std::string& file, bool own) {
    const Fd fd = OpenAt(folder.fd(), file, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    struct stat info;
    if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || IsLocked(fd.get())) return;
    if (others == Others::kOld && !IsLeftOver(folder, NameOfTemporary(file), own, info.st_mtime)) {
      return;
    }
    unlinkat(folder.fd(), file.c_str(), 0);
  });
}

}  // namespace shardinit
