#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"

namespace shardinit {
namespace {

std::string FolderOf(const std::string& path) {
  const size_t last = path.find_last_not_of('/');  // `a/b/` is in `a`, as `a/b` is.
  const size_t slash = path.rfind('/', last);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string TemporaryName(const std::string& name, uint64_t bits) {
  return fmt::format(".{}.tmp-{:016x}", name, bits);
}

// The name that a temporary one stands for; empty if TemporaryName() gives no such one.
std::string_view NameBehind(std::string_view temporary) {
  constexpr std::string_view kInfix = ".tmp-";
  constexpr size_t kDigits = 16, kRest = kInfix.size() + kDigits;
  if (temporary.size() < 1 + kRest || temporary[0] != '.') return {};
  const std::string_view rest = temporary.substr(temporary.size() - kRest);
  if (!rest.starts_with(kInfix) ||
      rest.find_first_not_of("0123456789abcdef", kInfix.size()) != rest.npos) {
    return {};
  }
  return temporary.substr(1, temporary.size() - kRest - 1);
}

// Calls with the temporary names in a folder, if there is one, that stand for names of which
// `is_ours` is true.
template <typename F>
void ForEachTemporary(const std::string& folder, const NamePredicate& is_ours, F visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) return;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = NameBehind(entry->d_name);
    if (!name.empty() && is_ours(name)) visit(fmt::format("{}/{}", folder, entry->d_name));
  }
}

uint64_t RandomBits() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) throw SystemError("read", "getrandom(2)");
  return bits;
}

// Like open(2), not stopped by signals.
Fd Open(const std::string& path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return Fd(fd);
}

std::string ReadStream(int fd, const std::string& path, size_t limit) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SystemError("read", path);
    if (n == 0) return text;
    if (text.size() + static_cast<size_t>(n) > limit) ThrowTooLarge(path, limit);
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

void ThrowTooLarge(const std::string& path, size_t limit) {
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is larger than {} bytes, the most this kind of file may have", path,
                          limit));
}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

bool Fd::Close() {
  if (fd_ < 0) return true;
  return close(std::exchange(fd_, -1)) == 0;
}

std::string ReadFile(const std::string& path, size_t limit) {
  if (path == "-") return ReadStream(STDIN_FILENO, "standard input", limit);
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const Fd fd = Open(path, O_RDONLY | O_NONBLOCK);
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) {
    throw Error(ExitCode::kUsage, fmt::format("there is no file `{}`", path));
  }
  if (!fd) throw SystemError("read", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) throw SystemError("read", path);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ExitCode::kUsage, fmt::format("`{}` is {}, not a file", path,
                                              S_ISDIR(info.st_mode) ? "a folder" : "a device"));
  }
  return ReadStream(fd.get(), path, limit);
}

bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text) {
  if (!Exists(path)) return false;
  *text = ReadFile(path, limit);
  return true;
}

Fd CreateTemporary(const std::string& path, std::string* temporary) {
  const std::string folder = FolderOf(path);
  while (true) {
    *temporary = fmt::format("{}/{}", folder, TemporaryName(NameOf(path), RandomBits()));
    Fd fd = Open(*temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!fd && errno == EEXIST) continue;
    if (!fd) throw SystemError("create a file in", folder);
    // The lock says "my owner lives" to RemoveTemporaries. If that got in
    // between our two calls, its unlink shows in the link count: try again.
    // File systems without locks are fine: nothing there is removed either.
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    struct stat info;
    if (fstat(fd.get(), &info) == 0 && info.st_nlink == 0) continue;
    return fd;
  }
}

bool SyncData(int fd) {
  while (fdatasync(fd) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

void Commit(int fd, const std::string& temporary, const std::string& path) {
  // A failed sync must not be tried again on the same descriptor: the kernel
  // reports lost pages once and then calls them clean.
  if (!SyncData(fd)) throw SystemError("write", path);
  if (rename(temporary.c_str(), path.c_str()) != 0) throw SystemError("create", path);
  SyncFolder(FolderOf(path));
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::Append(std::string_view text) {
  if (!WriteAll(fd_.get(), text.data(), text.size(), size_)) throw SystemError("write", path_);
  size_ += static_cast<int64_t>(text.size());
}

void AtomicFile::Commit() {
  shardinit::Commit(fd_.get(), temporary_, path_);
  temporary_.clear();
}

bool AtomicFile::CommitNew() {
  if (!SyncData(fd_.get())) throw SystemError("write", path_);
  // Unlike rename(2), link(2) replaces nothing. Where there are no hard links,
  // looking first has to do.
  if (link(temporary_.c_str(), path_.c_str()) == 0) {
    unlink(temporary_.c_str());
    temporary_.clear();
    SyncFolder(FolderOf(path_));
    return true;
  }
  if (errno == EEXIST || Exists(path_)) return false;
  Commit();
  return true;
}

void WriteFileAtomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.Append(text);
  file.Commit();
}

TemporaryFolder::TemporaryFolder(const std::string& path)
    : path_(path.substr(0, path.find_last_not_of('/') + 1)) {
  MakeFolder(FolderOf(path_));
  RemoveLeftOvers();
  do {
    temporary_ = fmt::format("{}/{}", FolderOf(path_), TemporaryName(NameOf(path_), RandomBits()));
    if (mkdir(temporary_.c_str(), 0777) != 0) {
      throw SystemError("create a folder in", FolderOf(path_));
    }
    lock_ = Open(temporary_, O_RDONLY | O_DIRECTORY);
    if (!lock_ && errno != ENOENT) {
      const int error = errno;
      rmdir(temporary_.c_str());
      throw SystemError("open the folder", temporary_, error);
    }
    // RemoveTemporaries may have got in between, as for CreateTemporary.
  } while (!lock_ || (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
           !Exists(temporary_));
}

void TemporaryFolder::RemoveLeftOvers() {
  const std::string name = NameOf(path_);
  ForEachTemporary(
      FolderOf(path_), [&](std::string_view other) { return other == name; },
      [](const std::string& path) {
        const Fd fd = Open(path, O_RDONLY | O_NOFOLLOW | O_DIRECTORY);
        std::error_code ignored;
        if (fd && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
          std::filesystem::remove_all(path, ignored);
        }
      });
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void TemporaryFolder::Commit() {
  SyncFolder(temporary_);
  // A folder takes the name of no more than an empty folder.
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
      throw SystemError("create", path_);
    throw Error(ExitCode::kConflict, fmt::format("`{}` has appeared meanwhile", path_),
                "choose another folder with `-o`");
  }
  temporary_.clear();
  SyncFolder(FolderOf(path_));
}

Fd CreateFile(const std::string& path) {
  Fd fd = Open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (!fd) throw SystemError("create", path);
  return fd;
}

namespace {

[[noreturn]] void ThrowNoSpace(const std::string& path, int64_t size, const struct statvfs& info) {
  throw Error(ExitCode::kWorld,
              fmt::format("cannot write `{}`: it needs {} bytes, but its file system has {} free",
                          path, size, static_cast<uint64_t>(info.f_bavail) * info.f_frsize),
              "free some space, or write to another disk with `-o`");
}

}  // namespace

void AllocateSpace(int fd, int64_t size, const std::string& path) {
  while (fallocate(fd, 0, 0, size) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
    if (errno != ENOSPC) throw SystemError("allocate space for", path);
    struct statvfs info = {};
    fstatvfs(fd, &info);
    ThrowNoSpace(path, size, info);
  }
}

void CheckFreeSpace(const std::string& folder, int64_t size, const std::string& path) {
  struct statvfs info = {};
  if (statvfs(folder.c_str(), &info) != 0) return;
  if (static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) <
      static_cast<double>(size)) {
    ThrowNoSpace(path, size, info);
  }
}

Fd ReopenDirect(int fd) { return Open(fmt::format("/proc/self/fd/{}", fd), O_WRONLY | O_DIRECT); }

bool WriteAll(int fd, const void* data, size_t size, int64_t offset) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = pwrite(fd, at, size, offset);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return false;
    at += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t size, int64_t offset) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = pread(fd, at, size, offset);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    at += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void MakeFolder(const std::string& path) {
  const auto make = [&] { return mkdir(path.c_str(), 0777) == 0 ? 0 : errno; };
  int error = make();
  if (error == ENOENT && FolderOf(path) != path) {
    MakeFolder(FolderOf(path));
    error = make();  // Once: an empty name, or a working folder that is gone, stays ENOENT.
  }
  struct stat info;
  if (error != 0 && (error != EEXIST || stat(path.c_str(), &info) != 0)) {
    throw SystemError("create the folder", path, error);
  }
  if (error != 0 && !S_ISDIR(info.st_mode)) {
    throw Error(ExitCode::kConflict, fmt::format("`{}` exists and is not a folder", path),
                "choose another output folder with `-o`");
  }
  SyncFolder(FolderOf(path));  // One that was there may be of a run that was killed before this.
}

void SyncFolder(const std::string& path) {
  const Fd fd = Open(path, O_RDONLY | O_DIRECTORY);
  if (!fd && errno == EACCES) return;  // Others' folders can be closed to readers.
  if (!fd) throw SystemError("open the folder", path);
  int error;
  do {
    error = fsync(fd.get()) != 0 ? errno : 0;
  } while (error == EINTR);
  // Some network file systems do not sync folders and say EINVAL.
  if (error != 0 && error != EINVAL) throw SystemError("sync the folder", path, error);
}

void RemoveTemporaries(const std::string& folder, const NamePredicate& is_ours) {
  ForEachTemporary(folder, is_ours, [](const std::string& path) {
    const Fd fd = Open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    struct stat info;
    if (fd && fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode) &&
        flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      unlink(path.c_str());
    }
  });
}

namespace {

// What is at `path`; false if nothing is. Any other failure says nothing of that, and is an error.
bool Look(const std::string& path, bool follow, struct stat* info) {
  if ((follow ? stat : lstat)(path.c_str(), info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw SystemError("read", path);
}

}  // namespace

bool Exists(const std::string& path) {
  struct stat info;
  return Look(path, false, &info);
}

bool IsFolder(const std::string& path) {
  struct stat info;
  return Look(path, true, &info) && S_ISDIR(info.st_mode);
}

void RequireFolder(const std::string& path) {
  if (IsFolder(path)) return;
  throw Error(ExitCode::kUsage, Exists(path) ? fmt::format("`{}` is a file, not a folder", path)
                                             : fmt::format("there is no folder `{}`", path));
}

bool IsEmptyFolder(const std::string& path) {
  if (!IsFolder(path)) return false;
  std::error_code error;
  const bool empty = std::filesystem::is_empty(path, error);
  if (error) throw SystemError("read", path, error.value());
  return empty;
}

bool IsLink(const std::string& path) {
  struct stat info;
  return Look(path, false, &info) && S_ISLNK(info.st_mode);
}

int64_t FileSize(const std::string& path) {
  struct stat info;
  return Look(path, false, &info) && S_ISREG(info.st_mode) ? info.st_size : -1;
}

}  // namespace shardinit
