// Reads files and folders on disk or, by URL, in a bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/folder.h"
#include "bucket/tree.h"

namespace shardinit {

// A file that is open for reading at any offset.
class InputFile {
 public:
  InputFile() = default;  // no file
  // Throws Error: kUsage if the path is a device, else kWorld.
  explicit InputFile(std::string path);

  explicit operator bool() const { return tree_ != nullptr || static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }
  bool is_remote() const { return tree_ != nullptr; }  // each read is a request
  int64_t size() const;
  // Reads these bytes. Returns false if the file ends earlier. Throws Error (kWorld) if it cannot
  // be read, or if an object is not the one that was listed.
  bool TryRead(int64_t offset, int64_t bytes, void* out) const;
  // Does the same, but throws Error (kWorld) if the file ends earlier.
  void Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  std::string path_;
  Fd fd_;
  BucketTree* tree_ = nullptr;
  int64_t object_bytes_ = 0;
};

// These work like the functions without `Input`, but also accept URLs.
bool InputExists(const std::string& path);
bool IsInputFolder(const std::string& path);
int64_t InputSize(const std::string& path);
std::string ReadInput(const std::string& path, size_t limit);
bool ReadInputIfExists(const std::string& path, size_t limit, std::string* text);
void WalkInput(const std::string& folder,
               const std::function<bool(const std::string& name, NameKind kind)>& visit);

// Returns the names in a folder, sorted.
std::vector<std::string> NamesIn(const std::string& folder);

}  // namespace shardinit
