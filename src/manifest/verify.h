// Is a checkpoint what its manifest says, byte for byte?
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/contents.h"

namespace shardinit {

struct VerifyResult {
  int64_t files = 0, boxes = 0, bytes = 0;  // Checked; of a checkpoint's files those of ranks.
  std::vector<Finding> findings;            // Empty: all is well.
};

// Hashes every byte of every rank file, `jobs` at a time. HDF5 is not involved:
// the digests cover its metadata too. Throws Error if the folder is no
// checkpoint or cannot be read. `progress` receives the bytes hashed
// so far and in all, from several threads.
VerifyResult Verify(const std::string& folder, int jobs,
                    const std::function<void(int64_t bytes, int64_t total)>& progress);

}  // namespace shardinit
