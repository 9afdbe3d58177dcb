// Makes the header of a safetensors file: eight bytes with its length, then JSON with each tensor's
// type, shape and place. Data follows without gaps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"

namespace shardinit::safetensors {

// Readers refuse longer headers.
inline constexpr size_t kMaxHeader = 100'000'000;

// The entries of `__metadata__`, text to text.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Lays out a file of these boxes. It orders them so that every box is aligned to its element size,
// and large ones to pages, for O_DIRECT.
FileLayout LayOutFile(std::string path, std::vector<FileBox> boxes, const Metadata& metadata);

}  // namespace shardinit::safetensors
