// Writes files, bypassing the page cache where possible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/folder.h"

namespace shardinit {

// The alignment of offsets and sizes of data that goes past the cache (O_DIRECT).
inline constexpr int64_t kDirectUnit = 4096;

// A destination for bytes that are computed in any order.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns the number of bytes that went past the cache. Thread-safe. Throws Error (kWorld).
  virtual int64_t Write(const void* data, int64_t bytes, int64_t offset) const = 0;
};

// Throws Error (kWorld) on every failure.
class OutputFile : public Sink {
 public:
  // Creates a new file. Nobody else may write to the folder.
  OutputFile(const Folder& folder, const std::string& name);
  OutputFile(const OutputFile&) = delete;

  const std::string& path() const { return path_; }  // the final path, for messages
  int fd() const { return fd_.get(); }
  int64_t size() const { return size_; }  // from Append() and Resize()

  void Append(std::string_view text);
  // Allocates `size` bytes, so that a full disk shows before hours of work instead of after. From
  // now on, data goes past the cache. Does either only where the file system supports it.
  void Reserve(int64_t size);
  void Resize(int64_t size);  // fills with zeros
  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override;
  // Writes through the cache, for data that shares pages with other data.
  void WriteText(std::string_view text, int64_t offset) const;
  // Syncs the data to disk. Later writes go through the cache.
  void Sync();

 protected:
  OutputFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

 private:
  const std::string path_;
  const Fd fd_;
  Fd direct_;  // the same file opened with O_DIRECT, or none
  int64_t size_ = 0;
};

}  // namespace shardinit
