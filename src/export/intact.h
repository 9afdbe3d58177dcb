// Checks whether an export is what its record says, byte for byte.
#pragma once

#include <string>

#include "checkpoint/verify.h"

namespace shardinit {

// Hashes every byte of every file that shardinit-export.json lists, `jobs` at a time, and looks for
// names that do not belong. No link is followed. Throws Error (kRefused) if that record is damaged.
VerifyResult VerifyExport(const std::string& folder, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
