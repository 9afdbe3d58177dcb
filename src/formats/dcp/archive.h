// Reads untrusted zip archives of `torch.save`, whose files are stored uncompressed. Compares the
// directory with the headers of the files, so that no other zip reader finds other bytes under a
// name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "formats/input.h"

namespace shardinit::dcp {

// A part of a file that is an archive of `torch.save`. Throws Error (kRefused).
class Archive {
 public:
  Archive(std::string path, int64_t offset, int64_t length);

  const std::string& path() const { return path_; }

  struct Entry {
    int64_t header, size;
    bool is_stored;
    int64_t limit = 0;  // where the next file or the directory begins
  };
  // Returns the file whose path after the archive's name is `end`, such as `/data.pkl`, or null. As
  // in PyTorch, the first file's folder is the archive's name.
  const Entry* Find(std::string_view end) const;
  // Returns the offset of the entry's bytes in the file.
  int64_t DataOf(const Entry& entry) const;
  std::string Text(const Entry& entry, int64_t most) const;

 private:
  // The directory's offset and size, and its number of files (-1 if unknown).
  struct Directory {
    int64_t at, size, count;
  };

  std::string Read(int64_t at, int64_t bytes) const;
  Directory FindDirectory() const;
  void ReadDirectory();
  void SetLimits(int64_t directory);

  const std::string path_;
  const int64_t offset_, length_;
  const InputFile file_;
  std::string name_;  // the archive's name
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace shardinit::dcp
