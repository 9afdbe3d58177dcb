// The header of a safetensors file is eight bytes with its length, then JSON with each tensor's
// type, shape and place. Data follows without gaps. Headers are made here, and those that anyone
// may have written are read: nothing in them is trusted before it is checked.
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

// The entries of `__metadata__`, text to text.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Lays out a file of these boxes. It orders them so that every box is aligned to its element size,
// and large ones to pages, for O_DIRECT.
FileLayout LayOutFile(std::string path, std::vector<FileBox> boxes, const Metadata& metadata);

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
// `metadata` gets the entries of `__metadata__`.
std::vector<Entry> ReadHeader(const std::string& path, Metadata* metadata);

}  // namespace shardinit::safetensors
