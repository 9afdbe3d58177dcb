// Owns HDF5 identifiers. Every id in this folder lives in a Handle, so that no path leaks one and
// no call's failure goes unnoticed.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

namespace shardinit::hdf5 {

// Returns HDF5's own account of its last failure, innermost cause first.
std::string LastReason();

// Throws Error (kWorld): "HDF5 cannot `doing`: its reason".
[[noreturn]] void Fail(const std::string& doing);

inline void Require(herr_t status, const char* doing) {
  if (status < 0) Fail(doing);
}

template <herr_t (*CloseId)(hid_t)>
class Handle {
 public:
  Handle(hid_t id, const char* doing) : id_(id) {
    if (id < 0) Fail(doing);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) CloseId(id_);
  }
  operator hid_t() const { return id_; }

  // Writers call this, since a close can be the first to fail.
  void Close(const char* doing) { Require(CloseId(std::exchange(id_, H5I_INVALID_HID)), doing); }

 private:
  hid_t id_;
};

using File = Handle<H5Fclose>;
using Group = Handle<H5Gclose>;
using Dataset = Handle<H5Dclose>;
using Attribute = Handle<H5Aclose>;
using Dataspace = Handle<H5Sclose>;
using Datatype = Handle<H5Tclose>;
using PropertyList = Handle<H5Pclose>;

}  // namespace shardinit::hdf5
