// Reads folders that anyone may have written: no link in them is followed. One that is held open is
// known by its descriptor, and its files are found there, whatever becomes of its name.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace shardinit {

// What is wrong with a file that is not there, or that is over a limit.
inline constexpr std::string_view kIsMissing = "is missing",
                                  kIsTooLarge = "is larger than any such file";

enum class NameKind { kFile, kFolder, kLink, kOther };

// Calls `visit` with each name below `folder`, such as `a/b`, in no certain order, and goes on into
// those folders for which it returns true. Throws Error (kWorld) if a folder cannot be read.
void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit);

// Returns false of what is no folder, or cannot be found. Throws Error (kWorld) if it cannot be
// read.
bool IsEmptyFolder(const std::string& path);

// Opens a regular file for reading and returns an empty text; else returns what is wrong, such as
// `is missing`. Throws Error (kWorld) if the file is there and cannot be opened.
std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size);

// Reads all of such a file of up to `limit` bytes, and returns the same.
std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text);

// Names are relative to the folder, and the last part of one is never followed if it is a link. A
// name counts as absent only if the system says just that; any other failure is thrown (kWorld).
class Folder {
 public:
  Folder() = default;  // none: nothing is in it

  // Opens the folder that a user names, or a link to it; returns none if nothing is there. Throws
  // Error (kConflict) if it is a file.
  static Folder Open(const std::string& path);
  // Makes the folder, and those above it, unless it is there; its name is on the disk then.
  static Folder Make(const std::string& path);
  // Opens a folder in this one. Throws Error (kConflict) if it is a link or a file.
  Folder OpenSub(const std::string& name) const;
  Folder MakeSub(const std::string& name) const;

  explicit operator bool() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const;  // for messages

  bool Look(const std::string& name, struct stat* info) const;  // false: nothing is there
  bool Exists(const std::string& name) const;
  int64_t FileSize(const std::string& name) const;  // -1: no such regular file
  // Waits up to a second for a name: what another machine has just made on a shared file system can
  // be seen here later than that it is taken, or later than what was made after it. Returns whether
  // it is there.
  bool ExistsSoon(const std::string& name) const;
  // Works like that for a name that the system has just said is taken. Throws Error (kWorld) if it
  // is not there.
  void AwaitTaken(const std::string& name) const;
  // These work like the functions of their names.
  std::string_view OpenIfFile(const std::string& name, Fd* fd, int64_t* size) const;
  std::string_view ReadIfFile(const std::string& name, size_t limit, std::string* text) const;
  void Walk(const std::function<bool(const std::string& name, NameKind kind)>& visit) const;
  // Works like ReadIfFile, but returns only whether it has the text.
  bool Read(const std::string& name, size_t limit, std::string* text) const;
  // Works like Read, and says of what it has not read whether anything is there. It opens the name
  // once: two looks at what others change, or make elsewhere, can tell different things.
  enum class Found { kText, kNothing, kOther };
  Found Find(const std::string& name, size_t limit, std::string* text) const;
  // Creates a new file, in a folder that nobody else writes.
  Fd Create(const std::string& name) const;
  void Remove(const std::string& name) const;  // removes a file, if there is one
  void Sync() const;
  void ForEachName(const std::function<void(const std::string& name)>& visit) const;
  // Tells whether the folder's path still leads to it.
  bool IsInPlace() const;

 private:
  Folder(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Fd fd_;
};

}  // namespace shardinit
