// The whole tool on one page: spec → graph → plan → boxes → files → manifest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/workers.h"
#include "manifest/file_tasks.h"
#include "manifest/manifest.h"
#include "manifest/verify.h"
#include "plan/load.h"
#include "plan/plan.h"

namespace shardinit {

// This is called about ten times a second while work is going on.
using ProgressFunction =
    std::function<void(const WorkCounters& counters, int64_t ranks_done, int64_t ranks)>;

struct GenerateRequest {
  std::string folder;
  std::vector<int64_t> ranks;  // ascending
  WorkerOptions workers;
  IndexMode index = IndexMode::kAuto;
  Damage damage;                 // what to make again, as if it did not exist
  TaskSource* source = nullptr;  // If null, values are generated.
  ProgressFunction progress;
};

struct GenerateResult {
  int64_t written = 0, skipped = 0;  // ranks
  int64_t bytes = 0;                 // data written
  bool complete = false;             // The folder has its manifest.
};

// Throws Error (kConflict) if `folder` exists and is for another plan.
void CheckFolder(const Plan& plan, const std::string& folder);

// Returns what Generate() must make again of what `folder` holds. A plan.json that is missing or
// changed is written again here, if the manifest says that the folder is this plan's. Throws as
// CheckFolder() does.
Damage FindRepairs(const Plan& plan, const std::string& folder, const std::vector<int64_t>& ranks,
                   int jobs, const VerifyProgress& progress);

// Writes the files of these ranks, except those that exist with a valid receipt, and finalizes the
// checkpoint if no rank is missing. Throws Error (kConflict) if the folder holds another plan.
GenerateResult Generate(const Plan& plan, const GenerateRequest& request, WorkCounters* counters);

struct TensorDigest {
  const Tensor* tensor;
  Digest sha256;  // hash of the whole tensor, row-major and little-endian
};

// Returns the digests of these whole tensors, without writing anything.
std::vector<TensorDigest> DigestTensors(const std::vector<const Tensor*>& tensors,
                                        const WorkerOptions& options,
                                        const ProgressFunction& progress, WorkCounters* counters);

// Returns the SHA-256 of the sorted lines `path dtype [shape] sha256`: it is the same on every mesh
// and in every layout.
Digest ModelDigest(const std::vector<TensorDigest>& tensors);

}  // namespace shardinit
