// Reads whole files, and offers all that descriptors need. base/new_file.h makes new files.
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
  // Closes and reports: a close can be the first call to say that a write failed.
  bool Close();
  int Release();  // The caller closes it.

 private:
  int fd_ = -1;
};

// Works like openat(2), but is not stopped by signals, and the descriptor is not inherited. Returns
// none with errno set on failure.
Fd OpenAt(int folder, const std::string& name, int flags, unsigned mode = 0);

// Opens a file for reading, without waiting for the writer of a FIFO. Throws Error: kUsage if it is
// a device, else kWorld.
Fd OpenToRead(const std::string& path);
// Returns a file in memory, at its beginning, with this text. `what` is for the message of the
// Error (kWorld) that is thrown without memory.
Fd FileInMemory(std::string_view text, const std::string& what);
// Reads all of these bytes, or throws Error (kWorld).
void ReadExactly(int fd, const std::string& path, void* data, size_t size, int64_t offset);

// These split a path; `a/b/` is `b` in `a`, as `a/b` is.
std::string FolderOf(const std::string& path);
std::string NameOf(const std::string& path);

// Returns the bytes of a regular file; `-` is standard input. Throws Error: kUsage if there is
// none, it is no regular file or over `limit` bytes, else kWorld.
std::string ReadFile(const std::string& path, size_t limit = 64 << 20);

// Throws the Error of ReadFile for a file over its limit.
[[noreturn]] void ThrowTooLarge(const std::string& path, size_t limit);

// Returns false if there is no such file; throws as ReadFile does for any other failure.
bool ReadFileIfExists(const std::string& path, size_t limit, std::string* text);

// Returns the text of a file of the kernel's, below /proc; empty if it cannot be read. It is no
// input of the user's. Throws Error (kWorld) if no more files may be open: that says nothing of it.
std::string ReadKernelFile(const std::string& path);

// Calls fdatasync(2), not stopped by signals. Returns false with errno set on failure.
bool SyncData(int fd);

// These make a full disk show before hours of work, not after. File systems that cannot allocate
// ahead say so and lose nothing but that.
void AllocateSpace(int fd, int64_t size, const std::string& path);
void CheckFreeSpace(int folder, int64_t size, const std::string& path);

// Writes all of it, however little the kernel takes at a time. Returns false with errno set on
// failure.
bool WriteAll(int fd, const void* data, size_t size, int64_t offset);
bool ReadAll(int fd, void* data, size_t size, int64_t offset);  // short file: false, errno 0

// Calls `visit` with the bytes of a range, piece by piece. Throws Error (kWorld) if it cannot be
// read, and can be interrupted.
void ReadRange(int fd, const std::string& path, int64_t offset, int64_t bytes,
               const std::function<void(std::string_view piece)>& visit);

bool AreSame(const struct stat& a, const struct stat& b);       // one file, by all its names
bool AreUnchanged(const struct stat& a, const struct stat& b);  // and with the bytes that it had

// Creates the folder, and those above it, unless it is there. Its name is on the disk when this
// returns. Throws Error (kConflict) if a file is in its place.
void MakeFolder(const std::string& path);
void SyncFolder(int fd, const std::string& path);

// Return false only if the system says that nothing is at `path`; any other failure is thrown.
bool LookAt(const std::string& path, struct stat* info);  // at what links lead to
bool Exists(const std::string& path);
bool IsFolder(const std::string& path);  // a folder or a link to one
// Throws Error (kUsage) if `path`, which a user gave for a folder, is not one.
void RequireFolder(const std::string& path);
int64_t FileSize(const std::string& path);  // -1: no such regular file

// Throws Error (kUsage), with the way that works, if `path` begins with a scheme and `://`: else a
// file or folder of that name would be made or looked for here.
void RequireLocal(const std::string& path);

// The files that this process has read for its user, which no result may replace, are remembered.

// Makes AddInput remember inputs from now on. The library, which writes nothing, never calls this:
// it keeps nothing between calls.
void RememberInputs();

// Files are known by device and inode, so by all their names. Safe to use from several threads.
void AddInput(const struct stat& file, const std::string& path);
bool IsInput(const struct stat& file);
// Returns the paths by which they were opened, ascending.
std::vector<std::string> InputPaths();

}  // namespace shardinit
