// Reads zip archives as `torch.save` makes them, in which files are stored and not compressed.
// Anyone may have written them: what the directory says is compared with what is there, so that no
// other reader of zip archives finds other bytes under a name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "formats/input.h"

namespace shardinit::dcp {

// A part of a file: the archive that `torch.save` made of something. Throws Error (kRefused).
class Archive {
 public:
  Archive(std::string path, int64_t offset, int64_t length);

  const std::string& path() const { return path_; }

  struct Entry {
    int64_t header, size;
    bool is_stored;
    int64_t limit = 0;  // where the next file or the directory begins
  };
  // Finds a file by what follows the archive's name, as in `/data.pkl`. That name is the folder of
  // the first file, as for PyTorch. Null: there is none.
  const Entry* Find(std::string_view end) const;
  // Returns the place of the entry's bytes in the file.
  int64_t DataOf(const Entry& entry) const;
  std::string Text(const Entry& entry, int64_t most) const;

 private:
  // Where the directory lies in the archive, and how many files it lists; -1: that is not said.
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
  std::string name_;  // of the archive
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace shardinit::dcp
