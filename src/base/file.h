// Files: whole reads, and all that descriptors need. base/new_file.h makes new ones.
#pragma once

#include <cstdint>
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

// Like openat(2), not stopped by signals, and not inherited. None with errno set.
Fd OpenAt(int folder, const std::string& name, int flags, unsigned mode = 0);

// `a/b/` is `b` in `a`, as `a/b` is.
std::string FolderOf(const std::string& path);
std::string NameOf(const std::string& path);

// The bytes of a regular file; `-` is standard input. Throws Error: kUsage if
// there is none, it is no regular file or over `limit` bytes, else kWorld.
std::string ReadFile(const std::string& path, size_t limit = 64 << 20);

// What is left to read of an open file; throws as ReadFile does.
std::string ReadToEnd(int fd, const std::string& path, size_t limit);

// What ReadFile says of a file over its limit.
[[noreturn]] void ThrowTooLarge(const std::string& path, size_t limit);

// False if there is none; throws as ReadFile does for any other failure.
bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text);

// fdatasync(2), not stopped by signals. False with errno set.
bool SyncData(int fd);

// So that a full disk shows before hours of work, not after. File systems that
// cannot allocate ahead say so and lose nothing but that.
void AllocateSpace(int fd, int64_t size, const std::string& path);
void CheckFreeSpace(int folder, int64_t size, const std::string& path);

// Writes all of it, whatever the kernel takes at a time. False with errno set.
bool WriteAll(int fd, const void* data, size_t size, int64_t offset);
bool ReadAll(int fd, void* data, size_t size, int64_t offset);  // Short file: false, errno 0.

// Creates the folder, and those above it, unless there is one; its name is on
// the disk then. A file in its place is an Error (kConflict).
void MakeFolder(const std::string& path);
void SyncFolder(int fd, const std::string& path);

// Nothing is at `path` if the system says just that; any other failure is thrown.
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);  // Or a link to one.
// Throws Error (kUsage) if `path`, which a user gave for a folder, is none.
void RequireFolder(const std::string& path);
bool IsEmptyFolder(const std::string& path);
int64_t FileSize(const std::string& path);  // -1: no such regular file.

}  // namespace shardinit
