// Lets HDF5 write a file into memory. HDF5 writes only metadata, so this takes little memory even
// for large files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/hdf5/build.h"

namespace shardinit::hdf5 {

// HDF5's files must be closed before the MemoryFile is destroyed.
class MemoryFile {
 public:
  File Create(const FileProperties& properties);
  File Open(const FileProperties& properties);  // Reopens it after it was closed.

  int64_t size() const { return size_; }
  // Moves everything but `boxes` out of the file; HDF5 has already placed the boxes. All other
  // bytes are zeros.
  FileLayout Take(std::string path, std::vector<FileBox> boxes);

 private:
  friend struct MemoryDriver;

  // Metadata comes in blocks of up to 1 MiB, so most pages are full.
  static constexpr int64_t kPage = 65536;

  PropertyList AccessFor(const FileProperties& properties);
  void Read(int64_t offset, int64_t bytes, char* out) const;
  void Write(int64_t offset, int64_t bytes, const char* in);
  // Appends the bytes from `begin` to `end` as texts, one for each page that is not all zeros.
  // Trims zeros at both ends of each text. Drops all pages before `end`.
  void TakeTexts(int64_t begin, int64_t end, std::vector<FileText>* texts);

  std::map<int64_t, std::string> pages_;  // by offset; missing pages are zeros
  int64_t size_ = 0;
};

}  // namespace shardinit::hdf5
