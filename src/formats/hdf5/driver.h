// Implements the common part of the drivers through which HDF5 reads and writes bytes
// (`H5FD_class_t`). Drivers must not throw.
#pragma once

#include <hdf5.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#if H5_VERSION_GE(1, 13, 2)
#include <H5FDdevelop.h>
#endif

namespace shardinit::hdf5 {

// A driver for a Target, which has a member `size_`. A property list holds the Target's address.
template <typename Target>
struct Driver {
  H5FD_t base;  // HDF5's own part
  Target* file;
  haddr_t end_of_allocation;

  static Driver* Of(H5FD_t* driver) { return reinterpret_cast<Driver*>(driver); }
  static const Driver* Of(const H5FD_t* driver) { return reinterpret_cast<const Driver*>(driver); }
  static Target* TargetOf(hid_t access) {
    return *static_cast<Target* const*>(H5Pget_driver_info(access));
  }

  static haddr_t GetEndOfAllocation(const H5FD_t* driver, H5FD_mem_t) {
    return Of(driver)->end_of_allocation;
  }
  static herr_t SetEndOfAllocation(H5FD_t* driver, H5FD_mem_t, haddr_t end) {
    Of(driver)->end_of_allocation = end;
    return 0;
  }

  // Returns the driver class of `Functions`, a class derived from this one. `number` distinguishes
  // classes.
  template <typename Functions>
  static H5FD_class_t ClassOf(const char* name, [[maybe_unused]] int number) {
    H5FD_class_t driver = {};
#ifdef H5FD_CLASS_VERSION
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + number);
#endif
    driver.name = name;
    driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
    driver.fapl_size = sizeof(Target*);
    driver.get_eoa = GetEndOfAllocation;
    driver.set_eoa = SetEndOfAllocation;
    driver.open = Functions::Open;
    driver.close = Functions::Close;
    driver.query = Functions::Query;
    driver.get_eof = Functions::GetEndOfFile;
    driver.read = Functions::Read;
    driver.write = Functions::Write;
    static constexpr H5FD_mem_t kMap[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(kMap), std::end(kMap), driver.fl_map);
    return driver;
  }
};

}  // namespace shardinit::hdf5
