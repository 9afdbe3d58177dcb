// A file that is being written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/folder.h"

namespace shardinit {

// Offsets and sizes are multiples of this where data goes past the cache (O_DIRECT).
inline constexpr int64_t kDirectUnit = 4096;

// Bytes go here that are made in any order.
class Sink {
 public:
  virtual ~Sink() = default;
  // Writes from any thread, and returns how many bytes went past the cache. Throws Error (kWorld).
  virtual int64_t Write(const void* data, int64_t bytes, int64_t offset) const = 0;
};

// Every failure is thrown (kWorld).
class OutputFile : public Sink {
 public:
  // Creates a new file, in a folder that nobody else writes.
  OutputFile(const Folder& folder, const std::string& name);
  OutputFile(const OutputFile&) = delete;

  const std::string& path() const { return path_; }  // the final path, for messages
  int fd() const { return fd_.get(); }
  int64_t size() const { return size_; }  // by Append() and Resize()

  void Append(std::string_view text);
  // Allocates `size` bytes, where the file system can, so that a full disk shows before hours of
  // work, not after. From now on data goes past the cache, where the file system can do that.
  void Reserve(int64_t size);
  void Resize(int64_t size);  // fills what it adds with zeros
  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override;
  // Writes through the cache: for data that shares pages with other data.
  void WriteText(std::string_view text, int64_t offset) const;
  // Brings to the disk what was written. What is written later goes through the cache.
  void Sync();

 protected:
  OutputFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

 private:
  const std::string path_;
  const Fd fd_;
  Fd direct_;  // the same file for O_DIRECT, or none
  int64_t size_ = 0;
};

}  // namespace shardinit
