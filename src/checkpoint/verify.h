// Checks whether a checkpoint is what its manifest says, byte for byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/findings.h"
#include "plan/plan.h"

namespace shardinit {

struct VerifyResult {
  // Counts of what was checked; of a checkpoint's files, only those of ranks.
  int64_t files = 0, boxes = 0, bytes = 0;
  Findings findings;  // Empty: all is well.
  Findings foreign;   // Names that do not belong, but that no reader takes for a part.
};

// Receives the bytes hashed so far and in all; called from several threads.
using VerifyProgress = std::function<void(int64_t bytes, int64_t total)>;

// Returns the bytes of data in all rank files; replicas count as often as they are stored.
int64_t BytesInFiles(const Plan& plan);

// Hashes every byte of every rank file, `jobs` at a time, and looks for names that do not belong.
// They are damage if a reader of all files of that kind would take them for a part, else foreign.
// No link is followed. HDF5 is not involved: the digests cover its metadata, too. Throws Error if
// the folder is no checkpoint or cannot be read.
VerifyResult Verify(const std::string& folder, int jobs, const VerifyProgress& progress);

// Lists what must be made again for Verify() to find nothing.
struct Damage {
  // Ascending; a rank without a receipt is missing anyway, and not here.
  std::vector<int64_t> ranks;
  bool completion = false;  // index.h5 or manifest.json, where all ranks are whole
};

// Checks these ascending ranks in a folder of this plan, complete or not, and also what completes
// them if they are all ranks, and whole.
Damage FindDamage(const std::string& folder, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<int64_t>& ranks, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
