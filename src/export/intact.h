// Is an export what its record says, byte for byte?
#pragma once

#include <functional>
#include <string>

#include "manifest/verify.h"

namespace shardinit {

// Hashes every byte of every file that shardinit-export.json lists, `jobs` at a time; other files
// in the folder are not looked at. `progress` as of Verify().
VerifyResult VerifyExport(const std::string& folder, int jobs,
                          const std::function<void(int64_t bytes, int64_t total)>& progress);

}  // namespace shardinit
