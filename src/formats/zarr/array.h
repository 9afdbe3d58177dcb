// An array of zarr 2: `.zarray` and a file for each chunk, in a folder.
#pragma once

#include <string_view>

#include "formats/format.h"

namespace shardinit::zarr {

// As zarr 2 and TensorStore write it; theirs for what NumPy has no type for.
std::string_view NameOf(DType dtype);

// Arrays that are not compressed, whoever wrote them, with all their chunks.
extern const FormatReader kReader;

}  // namespace shardinit::zarr
