// Copies a folder of tensors into a new checkpoint. Works like Generate(), with the folder's boxes
// as the source of elements, and writes to a folder next to the new one that is renamed at the end.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoint/copy.h"
#include "checkpoint/manifest.h"
#include "checkpoint/write.h"
#include "generate/workers.h"
#include "plan/plan.h"
#include "report/progress.h"

namespace shardinit {

struct ReshardRequest {
  FolderCopy* copy;    // the source of the elements
  std::string folder;  // the folder to make
  WorkerOptions workers;
  IndexMode index = IndexMode::kAuto;
  // If given, makes only these ranks, which ascend. Other processes make the other ranks, with the
  // same `claim`: everything but the plan that decides the values.
  std::optional<std::vector<int64_t>> ranks = {};
  std::string claim = {};
  ProgressMode progress = ProgressMode::kNever;
  bool is_quiet = false;  // as in Progress
  // Called with a sentence about each thing that a user may not expect.
  std::function<void(const std::string& sentence)> warn;
};

// Resumes what an interrupted call left, after comparing it with the source. Skips all ranks if
// `folder` already holds exactly this copy. Throws Error (kConflict) if it holds anything else, and
// what FolderCopy and Generate throw.
GenerateResult Reshard(const Plan& plan, const ReshardRequest& request, WorkCounters* counters);

}  // namespace shardinit
