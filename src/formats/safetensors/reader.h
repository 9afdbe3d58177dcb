// Reads headers of safetensors files that anyone may have written. It trusts nothing in them before
// it is checked.
#pragma once

#include <string>
#include <vector>

#include "tensor/box.h"

namespace shardinit::safetensors {

// A tensor in a file, or the box of one that a DCP_SHARDING_INFO says it is.
struct Entry {
  std::string name;
  std::string dtype;  // the type's name in the file: `BF16`
  Box box;
  int64_t offset;  // the offset of its first byte in the file
  int64_t bytes;
};

// Throws Error (kRefused) if the format's own library would not accept the file: its header must be
// within limits, and its data go without gaps and overlaps to the end.
std::vector<Entry> ReadHeader(const std::string& path);

}  // namespace shardinit::safetensors
