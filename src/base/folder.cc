#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"

namespace shardinit {
namespace {

constexpr std::string_view kLink = "is a link to elsewhere", kNoFile = "is not a file";

NameKind KindOf(int folder, const dirent* entry, const std::string& path) {
  struct stat info = {};
  info.st_mode = DTTOIF(entry->d_type);
  const bool is_known = entry->d_type != DT_UNKNOWN;  // some file systems do not report types
  if (!is_known && fstatat(folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    throw SystemError("read", path);
  }
  return S_ISREG(info.st_mode)   ? NameKind::kFile
         : S_ISDIR(info.st_mode) ? NameKind::kFolder
         : S_ISLNK(info.st_mode) ? NameKind::kLink
                                 : NameKind::kOther;
}

// Calls `visit` with each entry of the folder `name` in the folder `above`, and a descriptor of the
// inner folder. `path` is for messages.
void ForEachEntry(int above, const std::string& name, const std::string& path,
                  const std::function<void(int folder, const dirent* entry)>& visit) {
  // Only the path that a user names may be a link.
  const int flags = above == AT_FDCWD ? 0 : O_NOFOLLOW;
  Fd fd = OpenAt(above, name, O_RDONLY | O_DIRECTORY | flags);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? fdopendir(fd.get()) : nullptr, closedir);
  if (!dir) throw SystemError("read the folder", path);
  const int folder = fd.Release();
  while (true) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr && errno != 0) throw SystemError("read the folder", path);
    if (entry == nullptr) return;
    const std::string_view entry_name = entry->d_name;
    if (entry_name != "." && entry_name != "..") visit(folder, entry);
  }
}

// Walks the folder `name` in the folder `above`.
void WalkBelow(int above, const std::string& name, const std::string& path,
               const std::string& prefix,
               const std::function<bool(const std::string&, NameKind)>& visit) {
  ForEachEntry(above, name, path, [&](int fd, const dirent* entry) {
    ThrowIfInterrupted();
    const std::string inner = path + "/" + entry->d_name;
    const NameKind kind = KindOf(fd, entry, inner);
    if (visit(prefix + entry->d_name, kind) && kind == NameKind::kFolder) {
      WalkBelow(fd, entry->d_name, inner, prefix + entry->d_name + "/", visit);
    }
  });
}

// Works like OpenIfFile for a name in the folder of a descriptor. `path` is for messages.
std::string_view OpenIfFileAt(int folder, const std::string& name, const std::string& path, Fd* fd,
                              int64_t* size) {
  // O_NONBLOCK avoids waiting for the writer of a FIFO.
  *fd = OpenAt(folder, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  if (!*fd && (errno == ENOENT || errno == ENOTDIR)) return kIsMissing;
  if (!*fd && errno == ELOOP) return kLink;
  if (!*fd && errno == ENXIO) return kNoFile;  // a socket
  struct stat info;
  if (!*fd || fstat(fd->get(), &info) != 0) throw SystemError("read", path);
  if (!S_ISREG(info.st_mode)) return kNoFile;
  *size = info.st_size;
  return {};
}

std::string_view ReadIfFileAt(int folder, const std::string& name, const std::string& path,
                              size_t limit, std::string* text) {
  Fd fd;
  int64_t size = 0;
  const std::string_view wrong = OpenIfFileAt(folder, name, path, &fd, &size);
  if (!wrong.empty()) return wrong;
  if (static_cast<uint64_t>(size) > limit) return kIsTooLarge;
  text->resize(static_cast<size_t>(size));
  ReadExactly(fd.get(), path, text->data(), text->size(), 0);
  return {};
}

// Opens a folder. An unreadable folder gets a descriptor for names only.
Fd OpenFolderAt(int folder, const std::string& name, int flags) {
  Fd fd = OpenAt(folder, name, O_RDONLY | O_DIRECTORY | flags);
  if (!fd && errno == EACCES) fd = OpenAt(folder, name, O_PATH | O_DIRECTORY | flags);
  return fd;
}

}  // namespace

void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit) {
  WalkBelow(AT_FDCWD, folder, folder, "", visit);
}

// Not std::filesystem::is_empty(), which calls std::terminate() if it gets no memory.
bool IsEmptyFolder(const std::string& path) {
  bool is_empty = IsFolder(path);
  if (!is_empty) return false;
  ForEachEntry(AT_FDCWD, path, path, [&](int, const dirent*) { is_empty = false; });
  return is_empty;
}

std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size) {
  return OpenIfFileAt(AT_FDCWD, path, path, fd, size);
}

std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text) {
  return ReadIfFileAt(AT_FDCWD, path, path, limit, text);
}

Folder Folder::Open(const std::string& path) {
  // If opening fails but the name exists now, another process is creating the folder.
  for (int turn = 0; turn < 10; ++turn) {
    Fd fd = OpenFolderAt(AT_FDCWD, path, 0);
    if (fd) return {path, std::move(fd)};
    const bool is_missing = errno == ENOENT;
    if (!is_missing && errno != ENOTDIR) throw SystemError("open the folder", path);
    if (!shardinit::Exists(path)) return {};
    if (!is_missing) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw Error(ExitCode::kConflict, fmt::format("`{}` exists and is not a folder", path),
              "choose another output folder with `-o`");
}

Folder Folder::Make(const std::string& path) {
  MakeFolder(path);
  Folder folder = Open(path);
  if (!folder) throw SystemError("open the folder", path, ENOENT);
  return folder;
}

Folder Folder::OpenSub(const std::string& name) const {
  if (!*this) return {};
  Fd fd = OpenFolderAt(fd_.get(), name, O_NOFOLLOW);
  if (fd) return {PathOf(name), std::move(fd)};
  if (errno == ENOENT) return {};
  if (errno != ENOTDIR && errno != ELOOP) throw SystemError("open the folder", PathOf(name));
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` is a link to elsewhere, or not a folder", PathOf(name)),
              "choose another output folder with `-o`");
}

Folder Folder::MakeSub(const std::string& name) const {
  if (mkdirat(fd_.get(), name.c_str(), 0777) != 0 && errno != EEXIST) {
    throw SystemError("create the folder", PathOf(name));
  }
  Folder folder = OpenSub(name);
  if (!folder) throw SystemError("open the folder", PathOf(name), ENOENT);
  return folder;
}

std::string Folder::PathOf(std::string_view name) const {
  return fmt::format("{}/{}", path_, name);
}

bool Folder::Look(const std::string& name, struct stat* info) const {
  if (!*this) return false;
  if (fstatat(fd_.get(), name.c_str(), info, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw SystemError("read", PathOf(name));
}

bool Folder::Exists(const std::string& name) const {
  struct stat info;
  return Look(name, &info);
}

int64_t Folder::FileSize(const std::string& name) const {
  struct stat info;
  return Look(name, &info) && S_ISREG(info.st_mode) ? info.st_size : -1;
}

bool Folder::ExistsSoon(const std::string& name) const {
  for (int turn = 0; turn < 100; ++turn) {
    if (Exists(name)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Exists(name);
}

void Folder::AwaitTaken(const std::string& name) const {
  if (ExistsSoon(name)) return;
  throw Error(
      ExitCode::kWorld,
      fmt::format("another process made `{}`, which is gone or not visible here yet", PathOf(name)),
      "run the same command again");
}

bool Folder::Read(const std::string& name, size_t limit, std::string* text) const {
  return Find(name, limit, text) == Found::kText;
}

Folder::Found Folder::Find(const std::string& name, size_t limit, std::string* text) const {
  const std::string_view wrong = ReadIfFile(name, limit, text);
  if (wrong.empty()) return Found::kText;
  return wrong == kIsMissing ? Found::kNothing : Found::kOther;
}

void Folder::Remove(const std::string& name) const {
  if (unlinkat(fd_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    throw SystemError("remove", PathOf(name));
  }
}

void Folder::Sync() const { SyncFolder(fd_.get(), path_); }

void Folder::Walk(const std::function<bool(const std::string& name, NameKind kind)>& visit) const {
  if (*this) WalkBelow(fd_.get(), ".", path_, "", visit);
}

std::string_view Folder::OpenIfFile(const std::string& name, Fd* fd, int64_t* size) const {
  return *this ? OpenIfFileAt(fd_.get(), name, PathOf(name), fd, size) : kIsMissing;
}

std::string_view Folder::ReadIfFile(const std::string& name, size_t limit,
                                    std::string* text) const {
  return *this ? ReadIfFileAt(fd_.get(), name, PathOf(name), limit, text) : kIsMissing;
}

void Folder::ForEachName(const std::function<void(const std::string& name)>& visit) const {
  if (!*this) return;
  ForEachEntry(fd_.get(), ".", path_, [&](int, const dirent* entry) { visit(entry->d_name); });
}

Fd Folder::Create(const std::string& name) const {
  Fd fd = OpenAt(fd_.get(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (!fd) throw SystemError("create", PathOf(name));
  return fd;
}

bool Folder::IsInPlace() const {
  struct stat here, there;
  if (fstat(fd_.get(), &here) != 0) throw SystemError("read", path_);
  return LookAt(path_, &there) && AreSame(here, there);
}

}  // namespace shardinit
