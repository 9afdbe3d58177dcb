// Detects whether the files of a folder have changed.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>

#include "base/sha256.h"

namespace shardinit {

// The state of all files of a folder, or of one file, at one moment: the sizes, times and inodes of
// files on disk. Objects of a bucket are read as they were listed, and never change.
class InputStamps {
 public:
  InputStamps() = default;  // no files
  // `path` may be a URL.
  explicit InputStamps(const std::string& path);

  // Returns a digest of the names and the state of all files.
  Digest Identify() const;
  // Does the same, but the digest is equal on other machines and for copies that kept file times.
  Digest IdentifyAnywhere() const;
  // Returns false if the file is gone, or its size, time or inode has changed.
  bool IsUnchanged(const std::string& file) const;

 private:
  std::string path_;
  bool is_remote_ = false;
  std::map<std::string, struct stat> files_;
};

}  // namespace shardinit
