// Reads folders that anybody may have written, so it never follows links inside them. An open
// Folder is a descriptor: its files are found even if its name changes.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace shardinit {

// Problems of a file that does not exist or exceeds a limit.
inline constexpr std::string_view kIsMissing = "is missing",
                                  kIsTooLarge = "is larger than any such file";

enum class NameKind { kFile, kFolder, kLink, kOther };

// Calls `visit` with each name below `folder`, such as `a/b`, in any order. Enters the folders for
// which `visit` returns true. Throws Error (kWorld) if reading a folder fails.
void Walk(const std::string& folder,
          const std::function<bool(const std::string& name, NameKind kind)>& visit);

// Returns false if `path` is not a folder or does not exist. Throws Error (kWorld) if reading
// fails.
bool IsEmptyFolder(const std::string& path);

// Opens a regular file for reading and returns an empty text, or returns the problem, such as
// `is missing`. Throws Error (kWorld) if the file exists but cannot be opened.
std::string_view OpenIfFile(const std::string& path, Fd* fd, int64_t* size);

// Reads all of a regular file of up to `limit` bytes. Returns the same as OpenIfFile().
std::string_view ReadIfFile(const std::string& path, size_t limit, std::string* text);

// Names are relative to the folder. If the last part of a name is a link, it is not followed. A
// name is absent only if the system reports that; any other failure is thrown (kWorld).
class Folder {
 public:
  Folder() = default;  // empty: contains nothing

  // Opens the folder at `path`, or the target of a link there. Returns an empty Folder if nothing
  // exists. Throws Error (kConflict) if `path` is a file.
  static Folder Open(const std::string& path);
  // Creates the folder and its parents unless they exist. The name is then on disk.
  static Folder Make(const std::string& path);
  // Opens a folder in this one. Throws Error (kConflict) if it is a link or a file.
  Folder OpenSub(const std::string& name) const;
  Folder MakeSub(const std::string& name) const;

  explicit operator bool() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const;  // for messages

  bool Look(const std::string& name, struct stat* info) const;  // false: does not exist
  bool Exists(const std::string& name) const;
  int64_t FileSize(const std::string& name) const;  // -1: not a regular file
  // Returns whether the name exists, after waiting up to a second. On a shared file system, names
  // that another machine creates may appear here late: after a call reported them as taken, or
  // after newer names.
  bool ExistsSoon(const std::string& name) const;
  // Does the same for a name that the system just reported as taken. Throws Error (kWorld) if the
  // name does not appear.
  void AwaitTaken(const std::string& name) const;
  // Work like the functions of the same name.
  std::string_view OpenIfFile(const std::string& name, Fd* fd, int64_t* size) const;
  std::string_view ReadIfFile(const std::string& name, size_t limit, std::string* text) const;
  void Walk(const std::function<bool(const std::string& name, NameKind kind)>& visit) const;
  // Works like ReadIfFile, but returns only whether it read the text.
  bool Read(const std::string& name, size_t limit, std::string* text) const;
  // Works like Read, but also returns whether a name without a readable text exists. Opens the name
  // once: other processes and machines may change it between two looks.
  enum class Found { kText, kNothing, kOther };
  Found Find(const std::string& name, size_t limit, std::string* text) const;
  // Creates a new file. Nobody else may write to the folder.
  Fd Create(const std::string& name) const;
  void Remove(const std::string& name) const;  // removes a file, if it exists
  void Sync() const;
  void ForEachName(const std::function<void(const std::string& name)>& visit) const;
  // Returns whether the folder's path still leads to it.
  bool IsInPlace() const;

 private:
  Folder(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Fd fd_;
};

}  // namespace shardinit
