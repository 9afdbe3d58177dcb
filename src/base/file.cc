#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {

Fd OpenAt(int folder, const std::string& name, int flags, unsigned mode) {
  int fd;
  do {
    fd = openat(folder, name.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return Fd(fd);
}

namespace {

[[noreturn]] void ThrowNoFile(const std::string& path, const struct stat& info, ExitCode code) {
  throw Error(
      code,
      fmt::format("`{}` is {}, not a file", path, S_ISDIR(info.st_mode) ? "a folder" : "a device"),
      S_ISDIR(info.st_mode) ? "name a file in it" : "");
}

}  // namespace

Fd OpenToRead(const std::string& path) {
  Fd fd = OpenAt(AT_FDCWD, path, O_RDONLY | O_NONBLOCK);
  struct stat info;
  if (!fd || fstat(fd.get(), &info) != 0) throw SystemError("read", path);
  if (!S_ISREG(info.st_mode)) {
    ThrowNoFile(path, info, S_ISDIR(info.st_mode) ? ExitCode::kWorld : ExitCode::kUsage);
  }
  return fd;
}

Fd FileInMemory(std::string_view text, const std::string& what) {
  // Old C libraries lack memfd_create().
  Fd file(static_cast<int>(syscall(SYS_memfd_create, "text", MFD_CLOEXEC)));
  if (!file || !WriteAll(file.get(), text.data(), text.size(), 0)) throw SystemError("keep", what);
  return file;
}

std::string FolderOf(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  const size_t slash = path.rfind('/', last);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string NameOf(const std::string& path) {
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  return name.substr(name.rfind('/') + 1);
}

void ThrowTooLarge(const std::string& path, size_t limit) {
  throw Usage(fmt::format("`{}` is larger than {} bytes, the most this kind of file may have", path,
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

int Fd::Release() { return std::exchange(fd_, -1); }

namespace {

// Reads the rest of an open file.
std::string ReadToEnd(int fd, const std::string& path, size_t limit) {
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

std::string ReadFile(const std::string& path, size_t limit) {
  struct stat info;
  if (path == "-") {
    if (fstat(STDIN_FILENO, &info) == 0) AddInput(info, path);
    return ReadToEnd(STDIN_FILENO, "standard input", limit);
  }
  RequireLocal(path);
  // O_NONBLOCK avoids waiting for the writer of a FIFO.
  const Fd fd = OpenAt(AT_FDCWD, path, O_RDONLY | O_NONBLOCK);
  if (!fd && (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP)) {
    throw Usage(fmt::format("there is no file `{}`", path));
  }
  if (!fd) throw SystemError("read", path);
  if (fstat(fd.get(), &info) != 0) throw SystemError("read", path);
  AddInput(info, path);
  if (!S_ISREG(info.st_mode)) ThrowNoFile(path, info, ExitCode::kUsage);
  return ReadToEnd(fd.get(), path, limit);
}

bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text) {
  if (!Exists(path)) return false;
  *text = ReadFile(path, limit);
  return true;
}

std::string ReadKernelFile(const std::string& path) {
  constexpr size_t kLimit = 64 << 20;
  const Fd fd = OpenAt(AT_FDCWD, path, O_RDONLY);
  if (!fd && (errno == EMFILE || errno == ENFILE)) throw SystemError("read", path);
  try {
    return fd ? ReadToEnd(fd.get(), path, kLimit) : std::string();
  } catch (const Error&) {
    return {};
  }
}

bool SyncData(int fd) {
  while (fdatasync(fd) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
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

void CheckFreeSpace(int folder, int64_t size, const std::string& path) {
  struct statvfs info = {};
  if (fstatvfs(folder, &info) != 0) return;
  if (static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize) <
      static_cast<double>(size)) {
    ThrowNoSpace(path, size, info);
  }
}

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

void ReadExactly(int fd, const std::string& path, void* data, size_t size, int64_t offset) {
  if (ReadAll(fd, data, size, offset)) return;
  if (errno != 0) throw SystemError("read", path);
  throw Error(ExitCode::kWorld, fmt::format("`{}` ends before byte {}", path, offset + size),
              "do not change it while it is read");
}

void ReadRange(int fd, const std::string& path, int64_t offset, int64_t bytes,
               const std::function<void(std::string_view piece)>& visit) {
  std::string buffer(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 20)), '\0');
  for (const int64_t end = offset + bytes; offset < end;) {
    ThrowIfInterrupted();
    const auto n = static_cast<size_t>(std::min<int64_t>(std::ssize(buffer), end - offset));
    ReadExactly(fd, path, buffer.data(), n, offset);
    visit({buffer.data(), n});
    offset += static_cast<int64_t>(n);
  }
}

bool AreSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool AreUnchanged(const struct stat& a, const struct stat& b) {
  return AreSame(a, b) && a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;  // ctime: no program can set it back
}

void MakeFolder(const std::string& path) {
  const auto make = [&] { return mkdir(path.c_str(), 0777) == 0 ? 0 : errno; };
  int error = make();
  if (error == ENOENT && FolderOf(path) != path) {
    MakeFolder(FolderOf(path));
    // Try only once more: ENOENT persists for an empty name, or in a deleted working folder.
    error = make();
  }
  struct stat info;
  if (error == EEXIST && stat(path.c_str(), &info) != 0) {
    throw SystemError("create the folder", path, errno == ENOENT ? EEXIST : errno);
  }
  if (error != 0 && error != EEXIST) throw SystemError("create the folder", path, error);
  if (error != 0 && !S_ISDIR(info.st_mode)) {
    throw Error(ExitCode::kConflict, fmt::format("`{}` exists and is not a folder", path),
                "choose another output folder with `-o`");
  }
  // A run that was killed before it synced the name may have left the folder. Folders of other
  // users may be unreadable.
  const Fd above = OpenAt(AT_FDCWD, FolderOf(path), O_RDONLY | O_DIRECTORY);
  if (!above && errno == EACCES) return;
  if (!above) throw SystemError("open the folder", FolderOf(path));
  SyncFolder(above.get(), FolderOf(path));
}

void SyncFolder(int fd, const std::string& path) {
  int error;
  do {
    error = fsync(fd) != 0 ? errno : 0;
  } while (error == EINTR);
  // Some network file systems do not sync folders and return EINVAL. An unreadable folder has a
  // descriptor for names only, which returns EBADF.
  if (error != 0 && error != EINVAL && error != EBADF) {
    throw SystemError("sync the folder", path, error);
  }
}

namespace {

// Returns false if nothing is at `path`. Throws any other failure, since it does not answer the
// question.
bool Look(const std::string& path, bool follow, struct stat* info) {
  if ((follow ? stat : lstat)(path.c_str(), info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw SystemError("read", path);
}

}  // namespace

bool LookAt(const std::string& path, struct stat* info) { return Look(path, true, info); }

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
  if (Exists(path)) {
    throw Usage(fmt::format("`{}` is a file, not a folder", path),
                "name the folder of a checkpoint or an export");
  }
  throw Usage(fmt::format("there is no folder `{}`", path), "check the name of the folder");
}

int64_t FileSize(const std::string& path) {
  struct stat info;
  return Look(path, false, &info) && S_ISREG(info.st_mode) ? info.st_size : -1;
}

namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns `s3` for `s3://bucket/x`, with schemes as in RFC 3986; empty if the path has none.
std::string_view SchemeOf(std::string_view path) {
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  if (scheme.size() == path.size() || scheme.empty() || !IsLetter(scheme[0])) return {};
  const bool is_scheme = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return IsLetter(c) || (c >= '0' && c <= '9') || c == '+' || c == '.' || c == '-';
  });
  return is_scheme ? scheme : std::string_view();
}

}  // namespace

void RequireLocal(const std::string& path) {
  const std::string_view scheme = SchemeOf(path);
  if (scheme.empty()) return;
  const bool is_web = scheme == "http" || scheme == "https";
  throw Usage(fmt::format("`{}` is not a path of a file system, and {}", path,
                          scheme == "s3" || scheme == "hf" || is_web
                              ? "such a URL can only name a folder of tensors: a "
                                "checkpoint, an export, or another tool's folder"
                              : "shardinit supports only `s3://` stores"),
              scheme == "file" ? "leave `file://` out"
              : is_web         ? "download it, and use the copy"
                       : fmt::format("use a local folder, and copy it to or from `{}://` with that "
                                     "store's own tool",
                                     scheme));
}

namespace {

std::atomic<bool> remembers{false};
std::mutex inputs_mutex;
std::set<std::pair<dev_t, ino_t>> inputs;
std::set<std::string> input_paths;

}  // namespace

void RememberInputs() { remembers = true; }

void AddInput(const struct stat& file, const std::string& path) {
  if (!remembers || !S_ISREG(file.st_mode)) return;
  const std::lock_guard lock(inputs_mutex);
  inputs.emplace(file.st_dev, file.st_ino);
  input_paths.insert(path);
}

bool IsInput(const struct stat& file) {
  const std::lock_guard lock(inputs_mutex);
  return inputs.contains({file.st_dev, file.st_ino});
}

std::vector<std::string> InputPaths() {
  const std::lock_guard lock(inputs_mutex);
  return {input_paths.begin(), input_paths.end()};
}

}  // namespace shardinit
