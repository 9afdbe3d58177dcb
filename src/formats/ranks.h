// Refuses a file that holds one rank's part of a model, as if it were the whole.
#pragma once

#include <string>

#include "formats/format.h"

namespace shardinit {

// Throws Error (kRefused) if the name of the file or of its folder is one of several for ranks, or
// if its tensors are slices. `path` may be a folder, of which only the names of its files count.
void RequireAllRanks(const std::string& path, const Contents& contents);

}  // namespace shardinit
