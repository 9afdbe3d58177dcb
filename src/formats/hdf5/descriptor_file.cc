#include "formats/hdf5/descriptor_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>

#include "base/file.h"
#if H5_VERSION_GE(1, 13, 2)
#include <H5FDdevelop.h>
#endif

namespace shardinit::hdf5 {

// HDF5 asks for bytes through this driver (`H5FD_class_t`). Nothing may be thrown through it.
struct DescriptorDriver {
  H5FD_t base;  // HDF5's own part
  DescriptorFile* file;
  haddr_t end_of_allocation;

  static DescriptorDriver* Of(H5FD_t* driver) {
    return reinterpret_cast<DescriptorDriver*>(driver);
  }
  static const DescriptorDriver* Of(const H5FD_t* driver) {
    return reinterpret_cast<const DescriptorDriver*>(driver);
  }

  // A file that the first one names would be this one again.
  static H5FD_t* Open(const char*, unsigned flags, hid_t access, haddr_t) {
    auto* const file = *static_cast<DescriptorFile* const*>(H5Pget_driver_info(access));
    if (file->is_open_ || (flags & (H5F_ACC_RDWR | H5F_ACC_TRUNC | H5F_ACC_CREAT)) != 0) {
      return nullptr;
    }
    auto* const driver = new (std::nothrow) DescriptorDriver{{}, file, 0};
    if (driver == nullptr) return nullptr;
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
  static haddr_t GetEndOfAllocation(const H5FD_t* driver, H5FD_mem_t) {
    return Of(driver)->end_of_allocation;
  }
  static herr_t SetEndOfAllocation(H5FD_t* driver, H5FD_mem_t, haddr_t end) {
    Of(driver)->end_of_allocation = end;
    return 0;
  }
  static haddr_t GetEndOfFile(const H5FD_t* driver, H5FD_mem_t) {
    return static_cast<haddr_t>(Of(driver)->file->size_);
  }
  // What is beyond the end of the file is zero.
  static herr_t Read(H5FD_t* driver, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, void* out) {
    DescriptorFile& file = *Of(driver)->file;
    const auto size = static_cast<haddr_t>(file.size_);
    const size_t there =
        offset < size ? static_cast<size_t>(std::min<haddr_t>(bytes, size - offset)) : 0;
    std::memset(static_cast<char*>(out) + there, 0, bytes - there);
    if (there == 0 || ReadAll(file.fd_, out, there, static_cast<int64_t>(offset))) return 0;
    // A file that became shorter has no errno.
    if (file.error_ == 0) file.error_ = errno != 0 ? errno : EIO;
    return -1;
  }
  static herr_t Write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

  static hid_t Id() {
    static const hid_t id = [] {
      H5FD_class_t driver = {};
#ifdef H5FD_CLASS_VERSION
      driver.version = H5FD_CLASS_VERSION;
      driver.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 2);
#endif
      driver.name = "shardinit_descriptor";
      driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
      driver.fc_degree = H5F_CLOSE_WEAK;
      driver.fapl_size = sizeof(void*);  // The list holds the address of a DescriptorFile.
      driver.open = Open;
      driver.close = Close;
      driver.query = Query;
      driver.get_eoa = GetEndOfAllocation;
      driver.set_eoa = SetEndOfAllocation;
      driver.get_eof = GetEndOfFile;
      driver.read = Read;
      driver.write = Write;
      static constexpr H5FD_mem_t kMap[] = H5FD_FLMAP_DICHOTOMY;
      std::copy(std::begin(kMap), std::end(kMap), driver.fl_map);
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
