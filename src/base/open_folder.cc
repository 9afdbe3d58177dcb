#include "base/open_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"

namespace shardinit {
namespace {

// Opens a folder. One that is closed to readers gets a descriptor for names alone.
Fd OpenFolderAt(int folder, const std::string& name, int flags) {
  Fd fd = OpenAt(folder, name, O_RDONLY | O_DIRECTORY | flags);
  if (!fd && errno == EACCES) fd = OpenAt(folder, name, O_PATH | O_DIRECTORY | flags);
  return fd;
}

}  // namespace

Folder Folder::Open(const std::string& path) {
  // A name that could not be opened but exists now is being made by another process.
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
              fmt::format("`{}` is a link to elsewhere, or no folder", PathOf(name)),
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

bool Folder::Read(const std::string& name, size_t limit, std::string* text) const {
  if (!*this) return false;
  // O_NONBLOCK keeps the opening of a FIFO from waiting for a writer.
  const Fd fd = OpenAt(fd_.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENXIO)) {
    return false;
  }
  struct stat info;
  if (!fd || fstat(fd.get(), &info) != 0) throw SystemError("read", PathOf(name));
  if (!S_ISREG(info.st_mode) || info.st_size > static_cast<int64_t>(limit)) return false;
  *text = ReadToEnd(fd.get(), PathOf(name), limit);
  return true;
}

void Folder::Remove(const std::string& name) const {
  if (unlinkat(fd_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    throw SystemError("remove", PathOf(name));
  }
}

void Folder::Sync() const { SyncFolder(fd_.get(), path_); }

void Folder::ForEachName(const std::function<void(const std::string& name)>& visit) const {
  if (!*this) return;
  const int fd = openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd < 0 ? nullptr : fdopendir(fd), closedir);
  if (!dir) throw SystemError("read", path_);
  errno = 0;
  while (const dirent* entry = readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(entry->d_name);
    errno = 0;
  }
  if (errno != 0) throw SystemError("read", path_);
}

Fd Folder::Create(const std::string& name) const {
  Fd fd = OpenAt(fd_.get(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (!fd) throw SystemError("create", PathOf(name));
  return fd;
}

bool Folder::IsInPlace() const {
  struct stat here, there;
  return fstat(fd_.get(), &here) == 0 && stat(path_.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

}  // namespace shardinit
