// An array of zarr 2: `.zarray` and a file for each chunk, in a folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/pieces.h"
#include "tensor/dtype.h"

namespace shardinit::zarr {

// As zarr 2 and TensorStore write it; theirs for what NumPy has no type for.
std::string_view NameOf(DType dtype);

struct Array {
  std::string dtype;
  Shape shape;
  std::vector<FilePiece> pieces;  // Chunks; the last in a dimension may reach beyond the shape.
};

// The names of the folders in `folder` that are arrays.
std::vector<std::string> ArraysIn(const std::string& folder);

// An array that is not compressed, whoever wrote it, with all its chunks. Throws
// Error (kRefused) if it is anything else.
Array ReadArray(const std::string& folder);

}  // namespace shardinit::zarr
