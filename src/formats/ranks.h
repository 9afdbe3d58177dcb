// Refuses files that contain only one rank's part of a model.
#pragma once

#include <string>

#include "formats/format.h"

namespace shardinit {

// Throws Error (kRefused) if the file or its folder has siblings for other ranks, or if its tensors
// are slices. For a folder, checks only for vLLM's file names and FSDP's flat parameters.
void RequireAllRanks(const std::string& path, const Contents& contents);

}  // namespace shardinit
