// Tells whether the files of a folder are still what they were.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>

#include "base/sha256.h"

namespace shardinit {

// The state of all files of a folder, or of one file, at one moment. Of files on the disk it has
// their sizes, times and inodes. Objects of a bucket are read as they were listed, and never
// change.
class InputStamps {
 public:
  InputStamps() = default;  // none
  // `path` may be a URL.
  explicit InputStamps(const std::string& path);

  // Returns a digest of all names and of what is known of the files.
  Digest Identify() const;
  // Does the same, but is equal on other machines and for copies that kept the times of files.
  Digest IdentifyAnywhere() const;
  // Returns false if the file has another size, time or inode, or is gone.
  bool IsUnchanged(const std::string& file) const;

 private:
  std::string path_;
  bool is_remote_ = false;
  std::map<std::string, struct stat> files_;
};

}  // namespace shardinit
