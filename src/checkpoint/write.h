// Writes the checkpoint of a plan: its ranks, then the manifest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_tasks.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "generate/workers.h"
#include "plan/plan.h"

namespace shardinit {

struct GenerateRequest {
  std::string folder;
  std::vector<int64_t> ranks;  // ascending
  WorkerOptions workers;
  IndexMode index = IndexMode::kAuto;
  Damage damage;                 // what to make again, as if it did not exist
  TaskSource* source = nullptr;  // null: values are generated
  // The folder exists, and another process may take it away. If so, it is not created again.
  bool is_shared = false;
  // What decides the values, apart from the plan. All writers to one bucket must agree on it.
  std::string claim = {};
  // Called about ten times a second during the work.
  std::function<void(const WorkCounters& counters, int64_t ranks_done, int64_t ranks)> progress;
};

struct GenerateResult {
  int64_t written = 0, skipped = 0;  // ranks
  int64_t bytes = 0;                 // data written
  bool complete = false;             // whether the folder has its manifest
};

// Returns what Generate() would write of these ranks, without writing. Throws Error (kConflict) if
// `folder` exists and holds another plan.
GenerateResult FindRemainingWork(const Plan& plan, const std::string& folder,
                                 const std::vector<int64_t>& ranks);

// Returns what Generate() must make again in `folder`. Rewrites a missing or changed plan.json if
// the manifest has the digest of this plan. Throws as FindRemainingWork() does.
Damage FindRepairs(const Plan& plan, const std::string& folder, const std::vector<int64_t>& ranks,
                   int jobs, const VerifyProgress& progress);

// Writes the files of the requested ranks, except ranks with a valid receipt. Finalizes the
// checkpoint if no rank is missing. Throws Error (kConflict) if the folder holds another plan.
GenerateResult Generate(const Plan& plan, const GenerateRequest& request, WorkCounters* counters);

}  // namespace shardinit
