// Writes the checkpoint of a plan: its ranks, and at last the manifest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_tasks.h"
#include "checkpoint/manifest.h"
#include "checkpoint/receipt.h"
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
  TaskSource* source = nullptr;  // If null, values are generated.
  // The folder exists, and another process may take it away: it is not made again.
  bool is_shared = false;
  // What else than the plan decides the values. All writers to one bucket must agree on it.
  std::string claim = {};
  // Called about ten times a second while work is going on.
  std::function<void(const WorkCounters& counters, int64_t ranks_done, int64_t ranks)> progress;
};

struct GenerateResult {
  int64_t written = 0, skipped = 0;  // ranks
  int64_t bytes = 0;                 // data written
  bool complete = false;             // The folder has its manifest.
};

// Returns what Generate() would write of these ranks, and writes nothing. Throws Error (kConflict)
// if `folder` exists and is for another plan.
GenerateResult WhatIsLeft(const Plan& plan, const std::string& folder,
                          const std::vector<int64_t>& ranks);

// Returns what Generate() must make again of what `folder` holds. A plan.json that is missing or
// changed is written again here, if the manifest says that the folder is this plan's. Throws as
// WhatIsLeft() does.
Damage FindRepairs(const Plan& plan, const std::string& folder, const std::vector<int64_t>& ranks,
                   int jobs, const VerifyProgress& progress);

// Writes the files of these ranks, except those that exist with a valid receipt, and finalizes the
// checkpoint if no rank is missing. Throws Error (kConflict) if the folder holds another plan.
GenerateResult Generate(const Plan& plan, const GenerateRequest& request, WorkCounters* counters);

}  // namespace shardinit
