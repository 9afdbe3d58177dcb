// Headers of safetensors files that anyone may have written: nothing in them is
// trusted before it is checked.
#pragma once

#include <string>
#include <vector>

#include "tensor/box.h"

namespace shardinit::safetensors {

// A tensor in a file, or the box of one that a DCP_SHARDING_INFO says it is.
struct Entry {
  std::string name;
  std::string dtype;  // As the file says it: `BF16`.
  Box box;
  bool is_box;     // The offset is the file's own.
  int64_t offset;  // Of its first byte in the file.
  int64_t bytes;
};

// Throws Error (kRefused) if the file is not what the format's own library would
// accept: a header within limits, data without gaps and overlaps to the end.
std::vector<Entry> ReadHeader(const std::string& path);

}  // namespace shardinit::safetensors
