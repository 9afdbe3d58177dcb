// Lets HDF5 read a file through an open descriptor, so that HDF5 itself opens nothing. Keeps the
// errno of a failed read, which HDF5's own driver only formats into a text.
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
