// A tensor that lies in pieces in files, read as if it were one array.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/box.h"

namespace shardinit {

struct FilePiece {
  Box box;
  std::string file;
  int64_t offset;  // Of the box's first byte in the file.
};

// Whether two boxes of a tensor share an element.
bool Overlap(const Box& a, const Box& b);
// The first two found, of boxes of one tensor, that share an element.
std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<const Box*>& boxes);

// Reads elements first … first + count - 1 of a box, in the box's row-major
// order, from the pieces that have them. Safe to use from several threads.
void ReadPieces(const std::vector<FilePiece>& pieces, int element_bytes, const Box& box,
                int64_t first, int64_t count, void* out);

}  // namespace shardinit
