// Builds parts of HDF5 files: properties that give the same bytes everywhere, groups and
// attributes. A Handle owns each id in this folder, so no path leaks one and no failed call goes
// unnoticed.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::hdf5 {

// Returns HDF5's description of the innermost cause of its last failure.
std::string LastReason();

// Throws Error: "HDF5 cannot `doing`: its reason". The exit code is kWorld, or SystemError()'s code
// for some errors.
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

  // Writers call this because closing may be the first call that fails.
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

// These make a file's bytes the same everywhere: they bound the format's version and turn off
// object times.
struct FileProperties {
  FileProperties(H5F_libver_t high, int64_t datasets);
  PropertyList access, create;
};

void CloseFile(File& file);

PropertyList DatasetProperties();
Dataspace SpaceOf(const Shape& shape);

// Returns the HDF5 type of an element type. A bool is a uint8.
//
// Builds floats of less than 32 bits field by field, because HDF5 1.10 does not know them. HDF5 2
// recognizes the results as its own H5T_FLOAT_BFLOAT16LE, H5T_IEEE_F16LE, H5T_FLOAT_F8E4M3 and
// H5T_FLOAT_F8E5M2.
Datatype TypeOf(DType dtype);

// Caches types and dataspaces that a file's datasets and attributes share. HDF5 takes longer to
// make one than to use it, and a file may have a million attributes.
class Kinds {
 public:
  hid_t ElementOf(DType dtype);
  hid_t TextOf(size_t size);  // H5T_VARIABLE for any length
  hid_t Scalar();
  hid_t LineSpace(size_t length);  // An empty list has no extent, so its dataspace is empty.

 private:
  std::map<DType, Datatype> elements_;
  std::map<size_t, Datatype> texts_;
  std::map<size_t, Dataspace> lines_;
  std::optional<Dataspace> scalar_;
};

class AttributeWriter {
 public:
  // `kinds` must outlive the writer.
  AttributeWriter(hid_t object, Kinds& kinds) : object_(object), kinds_(kinds) {}

  void Text(const char* name, std::string_view text);
  // Writes text of variable length, for readers that accept no other kind. HDF5 stores it in a heap
  // of the file.
  void VariableText(const char* name, const std::string& text);
  void Integer(const char* name, int64_t value);
  // Does what Integer() does, but uses an unsigned type from 2^63 on.
  void Natural(const char* name, uint64_t value);
  void Integers(const char* name, const std::vector<int64_t>& values);
  // Pads texts with zero bytes to the longest.
  void Texts(const char* name, const std::vector<std::string>& texts);

 private:
  void Write(const char* name, hid_t file_type, hid_t memory_type, hid_t space, const void* data);

  hid_t object_;
  Kinds& kinds_;
};

// Makes groups one by one, without times (H5Pset_create_intermediate_group would add them), and
// keeps them open while the next dataset needs them.
class GroupStack {
 public:
  explicit GroupStack(hid_t file);

  // Returns the group of the dataset `/a/b/name`, and sets `*name` to `name`.
  hid_t Open(const std::string& dataset, std::string* name);

 private:
  hid_t file_;
  PropertyList create_;
  std::vector<std::pair<std::string, Group>> open_;
};

}  // namespace shardinit::hdf5
