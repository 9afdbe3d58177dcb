// Checks every byte of a checkpoint against its manifest.
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
#include "place/place.h"
#include "plan/plan.h"

namespace shardinit {

struct VerifyResult {
  // Counts of checked items. For a checkpoint, only rank files count.
  int64_t files = 0, boxes = 0, bytes = 0;
  Findings findings;  // empty: all is well
  Findings foreign;   // names that do not belong, but that readers ignore
  // The text that everything was compared with: the manifest, or the record of an export. Empty: it
  // could not be read.
  std::string statement = {};
};

// Receives the number of bytes hashed so far, and in total. Called from several threads.
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
  std::string_view origin;  // where the size is from: `its receipt`
  std::vector<Range> ranges;
  std::string place = {};  // precedes the bytes in messages, as in `rank 3, `
};

// Calls `find` for each range of ranks without a receipt: there may be millions. `present` has the
// other ranks, ascending.
void FindMissingRanges(const std::vector<int64_t>& present, int64_t world_size,
                       const std::function<void(std::string file, std::string message)>& find);

// Compares files of a place with their digests. Thread-safe.
class FileVerifier {
 public:
  // `files` is the number of files, and `total` is their size for the progress.
  FileVerifier(const Place& place, int64_t files, int jobs, int64_t total,
               const VerifyProgress& progress)
      : place_(place),
        readers_(SplitReaders(place, files, jobs)),
        total_(total),
        progress_(progress) {}

  int files_at_once() const { return readers_.files; }
  int in_file() const { return readers_.in_file; }  // threads, or pieces

  void Find(std::string file, std::string_view tensor, std::string message);
  // Hashes a file and adds a finding for each range that differs. Calls `rest` with the digest of
  // all bytes outside the ranges. Returns false if the file is missing or has another size.
  bool Verify(const FileToVerify& file, const std::function<void(const Digest& rest)>& rest = {});
  // Adds to the counts of the result.
  void Count(int64_t files, int64_t boxes, int64_t bytes);

  VerifyResult result;

 private:
  const Place& place_;
  const Readers readers_;
  const int64_t total_;
  const VerifyProgress& progress_;
  std::mutex mutex_;
  std::atomic<int64_t> hashed_{0};
};

// Hashes every byte of every rank file, `jobs` at a time, and looks for names that do not belong.
// Such a name is damage if a reader of all files of that kind would treat it as a part; otherwise
// it is foreign. A signature of the manifest belongs. Follows no links. Does not use HDF5, because
// the digests cover its metadata. Throws Error if the folder is not a checkpoint or cannot be read.
VerifyResult Verify(const Place& place, int jobs, const VerifyProgress& progress);

// Lists what must be made again for Verify() to find nothing.
struct Damage {
  // Ascending. Ranks without a receipt are not listed, because they are missing anyway.
  std::vector<int64_t> ranks;
  bool completion = false;  // index.h5 or manifest.json, if all ranks are intact
};

// Checks these ranks, which ascend, in a place of this plan, whether complete or not. If they are
// all ranks, and intact, also checks the files that complete them.
Damage FindDamage(const Place& place, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<int64_t>& ranks, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
