// A file that is being written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/open_folder.h"

namespace shardinit {

// What offsets and sizes are multiples of where data goes past the cache (O_DIRECT).
inline constexpr int64_t kDirectUnit = 4096;

// What fails is thrown (kWorld).
class OutputFile {
 public:
  // A new one, in a folder that nobody else writes.
  OutputFile(const Folder& folder, const std::string& name);
  OutputFile(const OutputFile&) = delete;

  const std::string& path() const { return path_; }  // Where it will be, for messages.
  int fd() const { return fd_.get(); }
  int64_t size() const { return size_; }  // By Append() and Resize().

  void Append(std::string_view text);
  // So that a full disk shows before hours of work, not after: allocates `size` bytes, where the
  // file system can. From now on data goes past the cache, where the file system can do that.
  void Reserve(int64_t size);
  void Resize(int64_t size);  // What is added is zeros.
  // From several threads. Returns how many bytes went past the cache.
  int64_t Write(const void* data, int64_t bytes, int64_t offset) const;
  // Through the cache: what shares pages with other data.
  void WriteText(std::string_view text, int64_t offset) const;
  void Sync();

 protected:
  OutputFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

 private:
  const std::string path_;
  const Fd fd_;
  Fd direct_;  // The same file for O_DIRECT, or none.
  int64_t size_ = 0;
};

}  // namespace shardinit
