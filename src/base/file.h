// Files: whole reads, and writes that appear complete or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace shardinit {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Closes and reports: a close can be the first to say that a write failed.
  bool Close();

 private:
  int fd_ = -1;
};

// The bytes of a regular file; `-` is standard input. Throws Error: kUsage if
// there is none, it is no regular file or over `limit` bytes, else kWorld.
std::string ReadFile(const std::string& path, size_t limit = 64 << 20);

// What ReadFile says of a file over its limit.
[[noreturn]] void ThrowTooLarge(const std::string& path, size_t limit);

// False if there is none; throws as ReadFile does for any other failure.
bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text);

// Creates a new file beside `path` that only this process writes: exclusive,
// never through a link. `*temporary` receives its name. Left-overs of killed
// runs carry the same prefix, see RemoveTemporaries.
Fd CreateTemporary(const std::string& path, std::string* temporary);

// fdatasync(2), not stopped by signals. False with errno set.
bool SyncData(int fd);

// Puts a finished temporary file in place: data to disk, rename, folder to disk.
void Commit(int fd, const std::string& temporary, const std::string& path);

// A text that is written piece by piece and appears whole, replacing what was
// there. Without Commit() nothing of it is left.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path)
      : path_(path), fd_(CreateTemporary(path, &temporary_)) {}
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  void Append(std::string_view text);
  void Commit();
  // False, and nothing done, if another file has the name already.
  bool CommitNew();

 private:
  const std::string path_;
  std::string temporary_;
  Fd fd_;
  int64_t size_ = 0;
};

void WriteFileAtomically(const std::string& path, std::string_view text);

// A folder beside `path` that only this process writes, and that gets the name
// when all in it is there. Without Commit() nothing of it is left.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& path);  // Also removes left-overs of killed runs.
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::string& path() const { return temporary_; }
  // Throws Error (kConflict) if the name is taken by more than an empty folder.
  void Commit();

 private:
  void RemoveLeftOvers();

  const std::string path_;
  std::string temporary_;
  Fd lock_;
};

// A new file, in a folder that only this process writes.
Fd CreateFile(const std::string& path);

// So that a full disk shows before hours of work, not after. File systems that
// cannot allocate ahead say so and lose nothing but that.
void AllocateSpace(int fd, int64_t size, const std::string& path);
void CheckFreeSpace(const std::string& folder, int64_t size, const std::string& path);

// The same file for O_DIRECT; none where the file system refuses that (tmpfs,
// some overlays): then all goes through the cache.
Fd ReopenDirect(int fd);

// Writes all of it, whatever the kernel takes at a time. False with errno set.
bool WriteAll(int fd, const void* data, size_t size, int64_t offset);
bool ReadAll(int fd, void* data, size_t size, int64_t offset);  // Short file: false, errno 0.

// Creates the folder, and those above it, unless there is one; its name is on
// the disk then. A file in its place is an Error (kConflict).
void MakeFolder(const std::string& path);
void SyncFolder(const std::string& path);
// Removes the temporary files in `folder`, and no others, whose owners are gone (their lock is
// free), and that stand for names of which `is_ours` is true.
using NamePredicate = std::function<bool(std::string_view name)>;
void RemoveTemporaries(const std::string& folder, const NamePredicate& is_ours);

// Throws, if nobody but others may know.
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);  // Or a link to one.
// Throws Error (kUsage) if `path`, which a user gave for a folder, is none.
void RequireFolder(const std::string& path);
bool IsEmptyFolder(const std::string& path);
bool IsLink(const std::string& path);
int64_t FileSize(const std::string& path);  // -1: no such regular file.

}  // namespace shardinit
