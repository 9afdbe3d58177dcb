// Writes and reads headers of safetensors files: the length in eight bytes, then JSON with each
// tensor's type, shape and place. Data follows without gaps. Headers are untrusted: everything in
// them is checked first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "tensor/box.h"

namespace shardinit::safetensors {

// Readers refuse longer headers.
inline constexpr size_t kMaxHeader = 100'000'000;

// The keys and texts of `__metadata__`.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Lays out a file of these boxes. Orders them so that each is aligned to its element size, and
// large ones to pages, for O_DIRECT.
FileLayout LayOutFile(std::string path, std::vector<FileBox> boxes, const Metadata& metadata);

// A tensor in a file or, with DCP_SHARDING_INFO, a box of one.
struct Entry {
  std::string name;
  std::string dtype;  // the type's name in the file, such as `BF16`
  Box box;
  int64_t offset;  // the offset of its first byte in the file
  int64_t bytes;
};

// Returns the tensors; adds the entries of `__metadata__` to `metadata`. Throws Error (kRefused) if
// the format's own library would not accept the file. The header must be within limits, and the
// data must go to the end of the file without gaps or overlaps.
std::vector<Entry> ReadHeader(const std::string& path, Metadata* metadata);

}  // namespace shardinit::safetensors
