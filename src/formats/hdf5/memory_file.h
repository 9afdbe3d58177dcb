// A file that HDF5 writes into memory. HDF5 writes metadata alone, so it is small however large the
// file is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/hdf5/build.h"

namespace shardinit::hdf5 {

// HDF5's files must be closed before it is destroyed.
class MemoryFile {
 public:
  File Create(const FileProperties& properties);
  File Open(const FileProperties& properties);  // Opens it once more, after it was closed.

  int64_t size() const { return size_; }
  // Takes out what is in the file beside `boxes`, which HDF5 has given their places: all else is
  // zeros. The bytes are no longer in here then.
  FileLayout Take(std::string path, std::vector<FileBox> boxes);

 private:
  friend struct MemoryDriver;

  // Metadata comes in blocks of up to 1 MiB, so most pages are full.
  static constexpr int64_t kPage = 65536;

  PropertyList AccessFor(const FileProperties& properties);
  void Read(int64_t offset, int64_t bytes, char* out) const;
  void Write(int64_t offset, int64_t bytes, const char* in);
  // Appends the bytes from `begin` to `end` as texts, each without zeros at its ends, and none for
  // a page where all are zeros. Forgets all pages before `end`.
  void TakeTexts(int64_t begin, int64_t end, std::vector<FileText>* texts);

  std::map<int64_t, std::string> pages_;  // By offset; absent pages are zeros.
  int64_t size_ = 0;
};

}  // namespace shardinit::hdf5
