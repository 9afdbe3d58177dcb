#include "base/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/new_file.h"

namespace shardinit {

// The file that the path leads to.
struct ResultFile::Place {
  std::string path;          // where the named links end
  struct stat present = {};  // the existing file
  bool exists = false;
  bool is_link = false;      // a link in /proc to a descriptor, which no new file can replace
  int standard_stream = -1;  // our stream that is this file, or -1
};

namespace {

constexpr int kMostLinks = 40;          // as in Linux
constexpr size_t kMarkedBytes = 65536;  // marks are in these first bytes
constexpr int kPatience = 50;           // milliseconds between checks for signals

bool IsInProc(const std::string& path) {
  struct statfs info;
  return statfs(FolderOf(path).c_str(), &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

std::string ReadLink(const std::string& path) {
  std::string target(4096, '\0');
  const ssize_t size = readlink(path.c_str(), target.data(), target.size());
  if (size < 0) throw SystemError("read the link", path);
  target.resize(static_cast<size_t>(size));
  return target;
}

// Returns standard output or error if it is this file and is writable, or -1. Throws if `path` is a
// read-only descriptor, such as a stream that was closed (base/talk.h): it would deliver nothing.
int StandardStreamOf(const struct stat& file, bool is_descriptor, const std::string& path) {
  bool is_closed = false;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !AreSame(file, info)) continue;
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) return fd;
    is_closed = true;
  }
  if (is_closed && is_descriptor) throw SystemError("write", path, EBADF);
  return -1;
}

// Returns whether there are marks, and the file begins with them. Throws if reading fails, because
// then the file's owner is unknown.
bool HasMarks(const std::string& path, const std::vector<std::string_view>& marks) {
  if (marks.empty()) return false;
  const Fd fd = OpenToRead(path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) throw SystemError("read", path);
  std::string head(std::min(kMarkedBytes, static_cast<size_t>(info.st_size)), '\0');
  ReadExactly(fd.get(), path, head.data(), head.size(), 0);
  if (!head.starts_with(marks.front())) return false;
  size_t at = 0;
  for (const std::string_view mark : marks) {
    at = head.find(mark, at);
    if (at == head.npos) return false;
    at += mark.size();
  }
  return true;
}

// Writes into a file without a size, such as a pipe, for as long as it takes.
void WriteToPipe(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    // A reader that exits is not a failure, as for printed output.
    if (errno == EPIPE) throw Interrupted{SIGPIPE};
    if (errno != EINTR && errno != EAGAIN) throw SystemError("write", path);
    ThrowIfInterrupted();
    struct pollfd wait = {fd, POLLOUT, 0};
    if (errno == EAGAIN) poll(&wait, 1, kPatience);
  }
}

// Opens a file for writing. Waits for the reader of a FIFO.
Fd OpenToWrite(const std::string& path, const struct stat& present) {
  while (true) {
    Fd fd = OpenAt(AT_FDCWD, path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
    if (fd) return fd;
    if (errno != ENXIO || !S_ISFIFO(present.st_mode)) throw SystemError("write", path);
    ThrowIfInterrupted();
    poll(nullptr, 0, kPatience);
  }
}

void WriteInPlace(const std::string& path, const struct stat& present, std::string_view text) {
  Fd fd = OpenToWrite(path, present);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) throw SystemError("write", path);
  if (!S_ISREG(info.st_mode)) {
    WriteToPipe(fd.get(), text, path);
  } else {
    const auto size = static_cast<off_t>(text.size());
    if (size > info.st_size) AllocateSpace(fd.get(), size, path);  // reports a full disk here
    if (!WriteAll(fd.get(), text.data(), text.size(), 0) || ftruncate(fd.get(), size) != 0 ||
        !SyncData(fd.get())) {
      throw SystemError("write", path);
    }
  }
  if (!fd.Close()) throw SystemError("write", path);
}

bool IsWritable(const std::string& path, int how) {
  return faccessat(AT_FDCWD, path.c_str(), how, AT_EACCESS) == 0;
}

}  // namespace

ResultFile::ResultFile(ResultKind kind, std::string path, bool force)
    : kind_(std::move(kind)), path_(std::move(path)), force_(force) {
  RequireOurs(Find());
}

ResultFile::Place ResultFile::Find() const {
  RequireLocal(path_);
  if (path_ == "-") {
    throw Usage(fmt::format("`{}` needs the name of a file, not `-`", kind_.option),
                fmt::format("name one, as in `{} FILE`", kind_.option));
  }
  Place place = {.path = path_};
  for (int links = 0;; ++links) {
    struct stat info;
    if (links > kMostLinks) {
      throw Usage(fmt::format("`{}` is a link that leads to itself", path_),
                  fmt::format("choose another name for `{}`", kind_.option));
    }
    if (lstat(place.path.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) break;
      throw SystemError("write", path_);
    }
    place.is_link = S_ISLNK(info.st_mode);
    if (!place.is_link || IsInProc(place.path)) break;
    const std::string target = ReadLink(place.path);
    place.path = target.starts_with('/') ? target : FolderOf(place.path) + "/" + target;
  }
  place.exists = stat(place.path.c_str(), &place.present) == 0;
  if (!place.exists && errno != ENOENT && errno != ENOTDIR) throw SystemError("write", path_);
  if (place.exists) {
    place.standard_stream = StandardStreamOf(place.present, place.is_link, path_);
  }
  return place;
}

void ResultFile::RequireOurs(const Place& place) const {
  const struct stat& present = place.present;
  if (S_ISDIR(present.st_mode) || place.path.ends_with('/')) {
    throw Usage(fmt::format("`{}` is a folder, and {} needs a file", path_,
                            fmt::format("`{}`", kind_.option)),
                "name a file in it");
  }
  const std::string folder = FolderOf(place.path);
  if (!place.exists) {
    if (!IsFolder(folder)) {
      throw Usage(fmt::format("there is no folder `{}` for `{}`", folder, path_),
                  "create it, or choose another name");
    }
    if (!IsWritable(folder, W_OK | X_OK)) throw SystemError("create a file in", folder);
    return;
  }
  if (IsInput(present)) {
    throw Usage(fmt::format("`{}` is a file that this command reads: it would be lost", path_),
                fmt::format("choose another name for `{}`", kind_.option));
  }
  if (place.standard_stream >= 0) return;
  if (!IsWritable(place.path, W_OK)) throw SystemError("write", path_);
  if (force_ || !(S_ISREG(present.st_mode) || S_ISBLK(present.st_mode))) return;
  if (S_ISREG(present.st_mode) && (present.st_size == 0 || HasMarks(place.path, kind_.marks))) {
    return;
  }
  throw Error(
      ExitCode::kConflict,
      kind_.marks.empty()
          ? fmt::format("`{}` exists", path_)
          : fmt::format("`{}` exists and is not a {} that this command wrote", path_, kind_.what),
      fmt::format("choose another name for `{}`, or replace it with `--force`", kind_.option));
}

bool ResultFile::IsStandardOutput() const { return Find().standard_stream == STDOUT_FILENO; }

void ResultFile::Write(std::string_view text) const {
  while (true) {
    const Place place = Find();
    RequireOurs(place);
    if (place.standard_stream >= 0) return WriteToPipe(place.standard_stream, text, path_);
    const std::string folder_path = FolderOf(place.path), name = NameOf(place.path);
    const bool has_name = !place.exists || (S_ISREG(place.present.st_mode) && !place.is_link);
    if (!has_name || (place.exists && !IsWritable(folder_path, W_OK | X_OK))) {
      return WriteInPlace(place.path, place.present, text);
    }
    const Folder folder = Folder::Open(folder_path);
    if (!folder) throw SystemError("create a file in", folder_path, ENOENT);
    RemoveLeftOvers(
        folder, [&](std::string_view other) { return other == name; }, Others::kOld);
    NewFile file(folder, name);
    // Keep the owner and mode. Otherwise strangers could open the file, or its users could not.
    if (place.exists && (fchown(file.fd(), place.present.st_uid, place.present.st_gid) != 0 ||
                         fchmod(file.fd(), place.present.st_mode & 0777) != 0)) {
      return WriteInPlace(place.path, place.present, text);
    }
    file.Append(text);
    if (place.exists) return file.Commit();
    if (file.CommitNew()) return;
    // A file has appeared meanwhile. Treat it like one that existed before.
  }
}

}  // namespace shardinit
