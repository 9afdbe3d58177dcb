// Checks whether a checkpoint is what its manifest says, byte for byte.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "formats/findings.h"
#include "plan/plan.h"

namespace shardinit {

struct VerifyResult {
  // Counts of what was checked; of a checkpoint's files, only those of ranks.
  int64_t files = 0, boxes = 0, bytes = 0;
  Findings findings;  // Empty: all is well.
  Findings foreign;   // Names that do not belong, but that no reader takes for a part.
  // The text that all else was compared with: the manifest, or the record of an export. Empty: it
  // could not be read.
  std::string statement = {};
};

// Receives the bytes hashed so far and in all; called from several threads.
using VerifyProgress = std::function<void(int64_t bytes, int64_t total)>;

// A file and the digests that ranges of it must have.
struct FileToVerify {
  struct Range {
    std::string_view tensor;  // empty: none
    int64_t offset, bytes;
    const Digest* digest;
  };
  std::string path;  // in the folder
  int64_t size;
  std::string_view origin;  // of the size: `its receipt`
  std::vector<Range> ranges;
  std::string place = {};  // stands before the bytes in messages, as in `rank 3, `
};

// Finds the ranks that have no receipt, by ranges: there may be millions. `present` ascends.
void FindMissingRanges(const std::vector<int64_t>& present, int64_t world_size,
                       const std::function<void(std::string file, std::string message)>& find);

// Finds what is wrong with the files of a folder. No link is followed.
class FileVerifier {
 public:
  // `total` is for the progress.
  FileVerifier(const std::string& folder, int jobs, int64_t total, const VerifyProgress& progress)
      : folder_(folder), jobs_(jobs), total_(total), progress_(progress) {}

  // Adds to the findings; from any thread.
  void Find(std::string file, std::string_view tensor, std::string message);
  // Hashes the ranges, several at a time, after `more` has looked at the open file. Returns false
  // if there is no such file of that size.
  bool Verify(const FileToVerify& file, const std::function<void(int fd)>& more = {});

  VerifyResult result;

 private:
  const std::string folder_;
  const int jobs_;
  const int64_t total_;
  const VerifyProgress& progress_;
  std::mutex mutex_;
  std::atomic<int64_t> hashed_{0};
};

// Hashes every byte of every rank file, `jobs` at a time, and looks for names that do not belong.
// They are damage if a reader of all files of that kind would take them for a part, else foreign.
// A signature of the manifest belongs. No link is followed. HDF5 is not involved: the digests cover
// its metadata, too. Throws Error if the folder is no checkpoint or cannot be read.
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
