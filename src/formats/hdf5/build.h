// What HDF5 files are built of: properties that give the same bytes everywhere,
// groups, attributes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/handle.h"
#include "tensor/box.h"

namespace shardinit::hdf5 {

// What makes the bytes of a file the same everywhere: bounds that fix the
// format, and no times on anything.
struct FileProperties {
  FileProperties(H5F_libver_t high, int64_t datasets);
  PropertyList access, create;
};

void CloseFile(File& file);

PropertyList DatasetProperties();
Dataspace SpaceOf(const Shape& shape);

class AttributeWriter {
 public:
  explicit AttributeWriter(hid_t object) : object_(object) {}

  void Text(const char* name, std::string_view text);
  // For readers that take no other text. It lies in a heap of the file.
  void VariableText(const char* name, const std::string& text);
  void Integer(const char* name, int64_t value);
  // As Integer, and of an unsigned type from 2^63 on.
  void Natural(const char* name, uint64_t value);
  void Integers(const char* name, const std::vector<int64_t>& values);
  // Each padded with zero bytes to the longest.
  void Texts(const char* name, const std::vector<std::string>& texts);

 private:
  void Write(const char* name, hid_t file_type, hid_t memory_type, const Dataspace& space,
             const void* data);

  hid_t object_;
};

// Groups are made one by one, without times (H5Pset_create_intermediate_group
// would give them some), and stay open while the next dataset needs them.
class GroupStack {
 public:
  explicit GroupStack(hid_t file);

  // The group that holds `/a/b/name`, and `name` itself.
  hid_t Open(const std::string& dataset, std::string* name);

 private:
  hid_t file_;
  PropertyList create_;
  std::vector<std::pair<std::string, Group>> open_;
};

}  // namespace shardinit::hdf5
