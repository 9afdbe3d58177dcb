// Lays out rank files, index.h5 and Keras files. HDF5 makes only the metadata; data is written
// directly, at the offsets in the metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "formats/format.h"
#include "plan/plan.h"

namespace shardinit::hdf5 {

// Lays out a rank's file: each shard of `rank` is a box, in that order. The same plan gives the
// same bytes on every machine and HDF5 version.
FileLayout LayOutRank(const Plan& plan, const RankPlan& rank, const Digest& plan_sha256);

// Lays out index.h5 at `path`. Each whole tensor is a virtual dataset over the rank files, with NaN
// where a piece is missing.
FileLayout LayOutIndex(std::string path, const Plan& plan, const Digest& plan_sha256);

// The most boxes for which an index is worth its size: at 5 µs and 120 bytes each, 10 s and 240 MB.
// HDF5 keeps the boxes of one tensor in memory, 15 kB each, while it makes the dataset. A reader
// keeps some of that when it opens the dataset.
inline constexpr int64_t kMaxIndexBoxes = 2'000'000;
inline constexpr int64_t kMaxTensorBoxes = 10'000;

using DatasetNames = std::string (*)(const Tensor& tensor);  // such as `/layers/dense/vars/0`

// Lays out a file with a dataset for each box. The head contains everything that HDF5 writes. The
// same boxes give the same bytes on every machine and HDF5 version.
FileLayout LayOutKerasFile(std::string path, std::vector<FileBox> boxes, DatasetNames names);

// Returns to the system the memory of laying out this many datasets, 1 KB or more each. Otherwise
// it would stay in use next to the blocks of elements.
void GiveBackMemory(size_t datasets);

}  // namespace shardinit::hdf5
