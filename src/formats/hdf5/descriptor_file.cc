#include "formats/hdf5/descriptor_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/file.h"
#include "formats/hdf5/driver.h"

namespace shardinit::hdf5 {

struct DescriptorDriver : Driver<DescriptorFile> {
  // Refuses to open a second file, because the driver would read the first one again.
  static H5FD_t* Open(const char*, unsigned flags, hid_t access, haddr_t) {
    DescriptorFile* const file = TargetOf(access);
    if (file->is_open_ || (flags & (H5F_ACC_RDWR | H5F_ACC_TRUNC | H5F_ACC_CREAT)) != 0) {
      return nullptr;
    }
    auto* const driver = new (std::nothrow) Driver{{}, file, 0};
    if (driver == nullptr) {
      file->error_ = ENOMEM;
      return nullptr;
    }
    file->is_open_ = true;
    return &driver->base;
  }
  static herr_t Close(H5FD_t* driver) {
    Of(driver)->file->is_open_ = false;
    delete Of(driver);
    return 0;
  }
  static herr_t Query(const H5FD_t*, unsigned long* flags) {
    *flags = H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE;
    return 0;
  }
  static haddr_t GetEndOfFile(const H5FD_t* driver, H5FD_mem_t) {
    return static_cast<haddr_t>(Of(driver)->file->size_);
  }
  // Bytes beyond the end of the file are zeros.
  static herr_t Read(H5FD_t* driver, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, void* out) {
    DescriptorFile& file = *Of(driver)->file;
    const auto size = static_cast<haddr_t>(file.size_);
    const size_t there =
        offset < size ? static_cast<size_t>(std::min<haddr_t>(bytes, size - offset)) : 0;
    std::memset(static_cast<char*>(out) + there, 0, bytes - there);
    if (there == 0 || ReadAll(file.fd_, out, there, static_cast<int64_t>(offset))) return 0;
    // If the file became shorter, errno is not set.
    if (file.error_ == 0) file.error_ = errno != 0 ? errno : EIO;
    return -1;
  }
  static herr_t Write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

  static hid_t Id() {
    static const hid_t id = [] {
      H5FD_class_t driver = ClassOf<DescriptorDriver>("shardinit_descriptor", 2);
      driver.fc_degree = H5F_CLOSE_WEAK;
      return H5FDregister(&driver);
    }();
    return id;
  }
};

File DescriptorFile::Open() {
  const PropertyList access(H5Pcreate(H5P_FILE_ACCESS), "make file properties");
  Require(H5Pset_file_locking(access, false, true), "turn off file locks");
  DescriptorFile* const self = this;
  Require(H5Pset_driver(access, DescriptorDriver::Id(), &self), "set the driver");
  return {H5Fopen("file", H5F_ACC_RDONLY, access), "open it"};
}

}  // namespace shardinit::hdf5
