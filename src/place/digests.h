// Hashes files of a place.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/sha256.h"
#include "place/file_outline.h"
#include "place/place.h"

namespace shardinit {

// The value of `in_file` for callers that hash one file at a time.
inline constexpr int kOneFile = 4;

struct FileDigests {
  std::vector<Digest> parts;
  Digest rest;  // bytes outside the parts, in order
};

// Returns the SHA-256 of each part of a file and of the rest, using `in_file` threads or requests.
// The parts must be inside the file and may overlap. Calls `progress` with the number of bytes of
// parts that each step hashed. Throws Error as PlaceFile::Read() does.
FileDigests HashFile(const Place& place, const PlaceFile& file, const std::vector<FilePart>& parts,
                     int in_file, const std::function<void(int64_t bytes)>& progress = {});

}  // namespace shardinit
