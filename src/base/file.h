// Reads whole files and wraps file descriptors; base/new_file.h creates files.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
  // Closes and returns success: close(2) may be the first call that reports a failed write.
  bool Close();
  int Release();  // The caller must close it.

 private:
  int fd_ = -1;
};

// Works like openat(2), but retries after signals, and child processes do not inherit the
// descriptor. Returns an empty Fd and sets errno on failure.
Fd OpenAt(int folder, const std::string& name, int flags, unsigned mode = 0);

// Opens a file for reading, without waiting for the writer of a FIFO. Throws Error: kUsage if it is
// a device, else kWorld.
Fd OpenToRead(const std::string& path);
// Returns a file in memory with this text, positioned at its start. Throws Error (kWorld), which
// names `what`, if memory is short.
Fd FileInMemory(std::string_view text, const std::string& what);
// Reads exactly `size` bytes. Throws Error (kWorld).
void ReadExactly(int fd, const std::string& path, void* data, size_t size, int64_t offset);

// Split a path. `a/b/` is treated as `a/b`: `b` in `a`.
std::string FolderOf(const std::string& path);
std::string NameOf(const std::string& path);

// Returns the bytes of a regular file; `-` is standard input. Throws Error: kUsage if the file does
// not exist, is not regular or exceeds `limit` bytes, else kWorld.
std::string ReadFile(const std::string& path, size_t limit = 64 << 20);

// Throws ReadFile's Error for a file over its limit.
[[noreturn]] void ThrowTooLarge(const std::string& path, size_t limit);

// Returns false if the file does not exist. Throws as ReadFile does for any other failure.
bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text);

// Returns the text of a kernel file such as those in /proc; empty if reading fails. Does not count
// as an input of the user. Throws Error (kWorld) if too many files are open, which has nothing to
// do with this file.
std::string ReadKernelFile(const std::string& path);

// Calls fdatasync(2) and retries after signals. Returns false and sets errno on failure.
bool SyncData(int fd);

// Report a full disk before hours of work instead of after. A file system that cannot allocate
// ahead lacks only this early report.
void AllocateSpace(int fd, int64_t size, const std::string& path);
void CheckFreeSpace(int folder, int64_t size, const std::string& path);

// Writes all bytes, even if the kernel takes only some at a time. Returns false and sets errno on
// failure.
bool WriteAll(int fd, const void* data, size_t size, int64_t offset);
bool ReadAll(int fd, void* data, size_t size, int64_t offset);  // file too short: false, errno 0

// Calls `visit` with the bytes of a range, in pieces. Throws Error (kWorld) if reading fails. Can
// be interrupted.
void ReadRange(int fd, const std::string& path, int64_t offset, int64_t bytes,
               const std::function<void(std::string_view piece)>& visit);

bool AreSame(const struct stat& a, const struct stat& b);       // same file, under any name
bool AreUnchanged(const struct stat& a, const struct stat& b);  // same file, same bytes

// Creates the folder and its parents unless they exist. When this returns, the name is on disk.
// Throws Error (kConflict) if a file has the name.
void MakeFolder(const std::string& path);
void SyncFolder(int fd, const std::string& path);

// Return false only if the system reports that nothing is at `path`. Throw any other failure.
bool LookAt(const std::string& path, struct stat* info);  // follows links
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);  // a folder, or a link to one
// Throws Error (kUsage) if `path`, which the user gave as a folder, is not one.
void RequireFolder(const std::string& path);
int64_t FileSize(const std::string& path);  // -1: not a regular file

// Throws Error (kUsage) with a working alternative if `path` begins with a scheme and `://`.
// Otherwise shardinit would create or look for a local file or folder of that name.
void RequireLocal(const std::string& path);

// These remember the files that this process read for its user: no result may replace them.

// Makes AddInput remember inputs from now on. The library never calls this: it writes nothing, and
// keeps nothing between calls.
void RememberInputs();

// Identify files by device and inode, and so by any name. Thread-safe.
void AddInput(const struct stat& file, const std::string& path);
bool IsInput(const struct stat& file);
// Returns the paths of the inputs as they were opened, sorted.
std::vector<std::string> InputPaths();

}  // namespace shardinit
