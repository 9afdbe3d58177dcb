// Reads arrays of zarr 2: each is a folder with `.zarray` and a file for each chunk.
#pragma once

#include <string_view>

#include "formats/format.h"

namespace shardinit::zarr {

// Returns the type's name as zarr 2 and TensorStore write it; TensorStore's if NumPy has no such
// type.
std::string_view NameOf(DType dtype);

// Reads arrays that are not compressed, whoever wrote them, with all their chunks.
extern const FormatReader kReader;

}  // namespace shardinit::zarr
