// Rank files and index.h5: HDF5 writes the metadata, and only that. Data goes
// past it, to the offsets that it names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "plan/plan.h"

namespace shardinit::hdf5 {

// Writes the metadata of a rank's file into the open, empty file `fd` (`path`
// names it in messages) and returns where each shard's data belongs: offsets in the file, in the
// order of `rank.shards`. All space is allocated; nothing of it is written yet (it reads as zeros,
// which is why a checkpoint needs its receipt). The same plan gives the same bytes on every machine
// and HDF5 version.
std::vector<int64_t> WriteRankMetadata(int fd, const std::string& path, const Plan& plan,
                                       const RankPlan& rank, const Digest& plan_sha256);

// Writes index.h5 into the open, empty file `fd`: each tensor whole, as a
// virtual dataset over the rank files, with NaN where a piece is missing.
void WriteIndex(int fd, const std::string& path, const Plan& plan, const Digest& plan_sha256);

// The most boxes for which an index is worth its size: at 5 µs and 120 bytes
// each this is 10 s and 240 MB. HDF5 keeps those of one tensor in memory, 15 kB
// each, while it makes the dataset; and a reader some of that when it opens it.
inline constexpr int64_t kMaxIndexBoxes = 2'000'000;
inline constexpr int64_t kMaxTensorBoxes = 10'000;

}  // namespace shardinit::hdf5
