// The parts that HDF5 files are built of: properties that give the same bytes everywhere, groups
// and attributes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/handle.h"
#include "tensor/box.h"

namespace shardinit::hdf5 {

// These make the bytes of a file the same everywhere: they bound the format's version, and no
// object has times.
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
  // Writes text for readers that take no other kind. It lies in a heap of the file.
  void VariableText(const char* name, const std::string& text);
  void Integer(const char* name, int64_t value);
  // Does what Integer does, but with an unsigned type from 2^63 on.
  void Natural(const char* name, uint64_t value);
  void Integers(const char* name, const std::vector<int64_t>& values);
  // Pads each text with zero bytes to the longest.
  void Texts(const char* name, const std::vector<std::string>& texts);

 private:
  void Write(const char* name, hid_t file_type, hid_t memory_type, const Dataspace& space,
             const void* data);

  hid_t object_;
};

// Makes groups one by one, without times (H5Pset_create_intermediate_group would give them some),
// and keeps them open while the next dataset needs them.
class GroupStack {
 public:
  explicit GroupStack(hid_t file);

  // Returns the group that holds the dataset `/a/b/name`, and sets `*name` to `name`.
  hid_t Open(const std::string& dataset, std::string* name);

 private:
  hid_t file_;
  PropertyList create_;
  std::vector<std::pair<std::string, Group>> open_;
};

}  // namespace shardinit::hdf5
