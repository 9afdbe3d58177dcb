#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"

namespace shardinit {
namespace {

constexpr time_t kOldSeconds = 6 * 3600;  // Since the last byte was written.
constexpr size_t kDigits = 16;

uint64_t RandomBits() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) throw SystemError("read", "getrandom(2)");
  return bits;
}

// Of the running kernel, which is what keeps the locks; nothing can be learnt from it. Where it is
// not to be had every process is a machine of its own.
const std::string& MachineId() {
  static const std::string id = [] {
    std::string boot;
    try {
      ReadFileIfExists("/proc/sys/kernel/random/boot_id", 4096, &boot);
    } catch (const Error&) {
    }
    if (boot.empty()) return fmt::format("{:016x}", RandomBits());
    return ToHex(Sha256Of("shardinit: a kernel's temporary files\n" + boot)).substr(0, kDigits);
  }();
  return id;
}

// `.NAME.tmp-MACHINE-RANDOM`.
std::string TemporaryName(std::string_view name) {
  return fmt::format(".{}.tmp-{}-{:016x}", name, MachineId(), RandomBits());
}

struct Temporary {
  std::string_view name, machine;  // Both empty: it is none.
};

Temporary ParseTemporary(std::string_view file) {
  constexpr std::string_view kInfix = ".tmp-";
  constexpr size_t kRest = kInfix.size() + 2 * kDigits + 1;
  if (file.size() <= 1 + kRest || file[0] != '.') return {};
  const std::string_view rest = file.substr(file.size() - kRest);
  const std::string_view machine = rest.substr(kInfix.size(), kDigits);
  const std::string_view random = rest.substr(kInfix.size() + kDigits + 1);
  constexpr std::string_view kHex = "0123456789abcdef";
  if (!rest.starts_with(kInfix) || machine.find_first_not_of(kHex) != machine.npos ||
      rest[kInfix.size() + kDigits] != '-' || random.find_first_not_of(kHex) != random.npos) {
    return {};
  }
  return {file.substr(1, file.size() - kRest - 1), machine};
}

// Calls with the temporary names in a folder that stand for names of which `is_ours` is true.
template <typename P, typename F>
void ForEachTemporary(const Folder& folder, P is_ours, F visit) try {
  folder.ForEachName([&](const std::string& file) {
    const Temporary temporary = ParseTemporary(file);
    if (!temporary.name.empty() && is_ours(temporary.name)) {
      visit(file, temporary.machine == MachineId());
    }
  });
} catch (const Error&) {
  // A folder that cannot be read keeps its left-overs.
}

// Free, or of a file system without locks where none is ever taken.
bool IsLocked(int fd) { return flock(fd, LOCK_EX | LOCK_NB) != 0; }

// What the folder's file system takes for the time.
time_t Now(const Folder& folder) {
  const NewFile file(folder, "time");
  struct stat info;
  return fstat(file.fd(), &info) == 0 ? info.st_mtime : 0;
}

// Of a folder and all in it.
time_t LastChange(const std::string& path) {
  struct stat info;
  time_t last = stat(path.c_str(), &info) == 0 ? info.st_mtime : 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (lstat(entry.path().c_str(), &info) == 0) last = std::max(last, info.st_mtime);
  }
  return last;
}

// A folder and all in it, never through a link.
void RemoveTree(const Folder& parent, const std::string& name) {
  {
    const Folder folder = parent.OpenSub(name);
    std::vector<std::string> inside;
    folder.ForEachName([&](const std::string& other) { inside.push_back(other); });
    for (const std::string& other : inside) {
      if (unlinkat(folder.fd(), other.c_str(), 0) != 0) RemoveTree(folder, other);
    }
  }
  unlinkat(parent.fd(), name.c_str(), AT_REMOVEDIR);
}

void RequireFree(const std::string& path) {
  if (!Exists(path) || IsEmptyFolder(path)) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` exists", path),
              "choose another folder with `-o`");
}

// From the name in `parent` to that of `path`, which is there, too. False if that is taken: a
// folder takes the name of no more than an empty folder.
bool TakeFolderName(const Folder& parent, const std::string& from, const std::string& path) {
  if (renameat(parent.fd(), from.c_str(), parent.fd(), shardinit::NameOf(path).c_str()) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR) return false;
    throw SystemError("create", path);
  }
  parent.Sync();
  return true;
}

// Of a folder that is to be made beside `path`, which must be able to take that name.
std::string PathToTake(const std::string& path) {
  std::string plain = path.substr(0, path.find_last_not_of('/') + 1);
  const std::string name = shardinit::NameOf(plain);
  if (name.empty() || name == "." || name == "..") {
    throw Error(ExitCode::kUsage, fmt::format("`{}` is not the name of a new folder", path),
                "name one with `-o`");
  }
  std::error_code error;
  if (std::filesystem::is_symlink(plain, error)) {
    throw Error(ExitCode::kConflict, fmt::format("`{}` is a link", plain),
                "choose another folder with `-o`");
  }
  return plain;
}

// By the folder's descriptor.
std::string ProcPath(const Folder& folder, const std::string& name) {
  return fmt::format("/proc/self/fd/{}/{}", folder.fd(), name);
}

}  // namespace

// A new file under a temporary name.
NewFile::Temporary NewFile::MakeTemporary(const Folder& folder, const std::string& name) {
  SignalsWait signals;
  while (true) {
    std::string temporary = TemporaryName(name);
    Fd fd = OpenAt(folder.fd(), temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!fd && errno == EEXIST) continue;
    if (!fd) throw SystemError("create a file in", folder.path());
    // The lock says "my owner lives" to RemoveLeftOvers. If that got in between our two calls, its
    // unlink shows in the link count: try again. File systems without locks are fine: nothing
    // there is removed either.
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    struct stat info;
    if (fstat(fd.get(), &info) != 0 || info.st_nlink != 0) {
      return {std::move(signals), temporary, std::move(fd)};
    }
  }
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
    struct stat info;
    const int error = errno;
    if (error != ENOENT || fstat(fd(), &info) != 0 || folder_.FileSize(name_) != info.st_size) {
      throw SystemError("create", path(), error);
    }
  }
  temporary_.clear();
  folder_.Sync();
}

void NewFile::Commit(const std::function<void()>& before_name) {
  Sync();
  if (before_name) before_name();
  TakeName();
}

bool NewFile::CommitNew() {
  Sync();
  const int folder = folder_.fd();
  const char *from = temporary_.c_str(), *to = name_.c_str();
  // File systems know the one, or the other.
  if (renameat2(folder, from, folder, to, RENAME_NOREPLACE) == 0) {
    temporary_.clear();
    folder_.Sync();
    return true;
  }
  if (errno != EEXIST) {
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
      throw SystemError("create", path());
    }
    if (linkat(folder, from, folder, to, 0) == 0) {
      unlinkat(folder, from, 0);
      temporary_.clear();
      folder_.Sync();
      return true;
    }
    // Else an empty file says that its maker will replace it.
    if (errno != EEXIST) {
      if (OpenAt(folder, name_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)) {
        TakeName();
        return true;
      }
      if (errno != EEXIST) throw SystemError("create", path());
    }
  }
  // One that stays empty is of a process that was killed.
  for (int i = 0; i < 100 && folder_.FileSize(name_) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (folder_.FileSize(name_) != 0) return false;
  TakeName();
  return true;
}

NewFolder::NewFolder(const std::string& path)
    : path_(PathToTake(path)), parent_(Folder::Make(FolderOf(path_))) {
  const std::string name = NameOf(path_);
  ForEachTemporary(
      parent_, [&](std::string_view other) { return other == name; },
      [&](const std::string& file, bool own) {
        try {
          const Folder old = parent_.OpenSub(file);
          if (!old || IsLocked(old.fd())) return;
          if (!own && Now(parent_) - LastChange(ProcPath(parent_, file)) < kOldSeconds) return;
          RemoveTree(parent_, file);
        } catch (const std::exception&) {
          // It stays.
        }
      });
  while (true) {
    temporary_ = TemporaryName(name);
    if (mkdirat(parent_.fd(), temporary_.c_str(), 0777) != 0) {
      throw SystemError("create a folder in", parent_.path());
    }
    try {
      folder_ = parent_.OpenSub(temporary_);
      // As for NewFile, another process may have got in between.
      if (folder_ && (flock(folder_.fd(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
          parent_.Exists(temporary_)) {
        return;
      }
    } catch (const Error&) {
      unlinkat(parent_.fd(), temporary_.c_str(), AT_REMOVEDIR);
      throw;
    }
  }
}

NewFolder::~NewFolder() {
  if (temporary_.empty()) return;
  try {
    RemoveTree(parent_, temporary_);
  } catch (const Error&) {
    // What is left is for the next run.
  }
}

bool NewFolder::Commit() {
  folder_.Sync();
  if (!TakeFolderName(parent_, temporary_, path_)) return false;
  temporary_.clear();
  return true;
}

StagedFolder::StagedFolder(const std::string& path, std::string_view key)
    : path_(PathToTake(path)),
      parent_(Folder::Make(FolderOf(path_))),
      name_(fmt::format(".{}.part-{}", NameOf(path_), key)),
      staged_(FolderOf(path_) + "/" + name_) {
  RequireFree(path_);
  folder_ = parent_.MakeSub(name_);
  if (flock(folder_.fd(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ExitCode::kConflict, fmt::format("another process is making `{}`", path_),
                "wait for it, or choose another folder with `-o`");
  }
}

void StagedFolder::Remove() { RemoveTree(parent_, name_); }

void StagedFolder::Commit() {
  folder_.Sync();
  if (TakeFolderName(parent_, name_, path_)) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` has appeared meanwhile", path_),
              "choose another folder with `-o`");
}

std::string_view NameOfTemporary(std::string_view file) { return ParseTemporary(file).name; }

void RemoveLeftOvers(const Folder& folder,
                     const std::function<bool(std::string_view name)>& is_ours, Others others) {
  ForEachTemporary(folder, is_ours, [&](const std::string& file, bool own) {
    const Fd fd = OpenAt(folder.fd(), file, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    struct stat info;
    if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || IsLocked(fd.get())) return;
    if (!own && others == Others::kOld && Now(folder) - info.st_mtime < kOldSeconds) return;
    unlinkat(folder.fd(), file.c_str(), 0);
  });
}

}  // namespace shardinit
