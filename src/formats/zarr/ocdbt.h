// Reads OCDBT databases, in which TensorStore stores the files of many arrays as keys of a B+tree.
#pragma once

#include <map>
#include <string>

#include "formats/frame.h"

namespace shardinit::zarr {

// The name of the file that marks a folder as such a database.
inline constexpr char kOcdbtManifest[] = "manifest.ocdbt";

// Returns where the newest version of the database in `folder` stores the value of each key. Throws
// Error: kRefused if the database is damaged or hostile, kWorld if it cannot be read.
//
// Source of the format: tensorstore/kvstore/ocdbt/index.rst of google/tensorstore.
std::map<std::string, Extent> ReadOcdbt(const std::string& folder);

}  // namespace shardinit::zarr
