// Is a checkpoint what its manifest says, byte for byte?
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/findings.h"
#include "plan/plan.h"

namespace shardinit {

struct VerifyResult {
  int64_t files = 0, boxes = 0, bytes = 0;  // Checked; of a checkpoint's files those of ranks.
  Findings findings;                        // Empty: all is well.
  Findings foreign;  // What is there and no part of it, which no reader takes for one.
};

// Bytes hashed so far and in all; called from several threads.
using VerifyProgress = std::function<void(int64_t bytes, int64_t total)>;

// Of data in all rank files: replicas as often as they are stored.
int64_t BytesInFiles(const Plan& plan);

// Hashes every byte of every rank file, `jobs` at a time, and looks for names
// that do not belong: damage if a reader of all files of that kind would take
// them for a part, else foreign. No link is followed. HDF5 is not involved: the digests
// cover its metadata too. Throws Error if the folder is no checkpoint or cannot
// be read.
VerifyResult Verify(const std::string& folder, int jobs, const VerifyProgress& progress);

// What must be made again for Verify() to find nothing.
struct Damage {
  std::vector<int64_t> ranks;  // Ascending; none that has no receipt, so is missing anyway.
  bool completion = false;     // index.h5 or manifest.json, in a complete checkpoint.
};

// Of a folder of this plan, complete or not, these ascending ranks and, if they are all and whole,
// what completes them.
Damage FindDamage(const std::string& folder, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<int64_t>& ranks, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
