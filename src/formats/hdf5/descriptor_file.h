// A file that HDF5 reads through a descriptor that is open already: it opens nothing itself, and
// what the system says of a failed read is kept, which HDF5's own driver puts into a text.
#pragma once

#include <cstdint>

#include "formats/hdf5/build.h"

namespace shardinit::hdf5 {

class DescriptorFile {
 public:
  DescriptorFile(int fd, int64_t size) : fd_(fd), size_(size) {}
  DescriptorFile(const DescriptorFile&) = delete;

  File Open();                          // for reading
  int error() const { return error_; }  // errno of the first read that failed, or 0

 private:
  friend struct DescriptorDriver;

  const int fd_;
  const int64_t size_;
  bool is_open_ = false;
  int error_ = 0;
};

}  // namespace shardinit::hdf5
