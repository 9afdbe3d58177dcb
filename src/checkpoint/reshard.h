// Makes a checkpoint of a folder of tensors: as Generate() does, with the folder's boxes as the
// source of elements, into a folder beside the new one that gets its name at the end.
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
  FolderCopy* copy;  // the source of the elements of `to`
  const Plan* to;
  std::string folder;  // the one to make
  WorkerOptions workers;
  IndexMode index = IndexMode::kAuto;
  // If given, only these ranks are made, ascending, and other processes make the others: of
  // the same `claim`, which says what else than the plan decides the values.
  std::optional<std::vector<int64_t>> ranks = {};
  std::string claim = {};
  ProgressMode progress = ProgressMode::kNever;
  bool is_quiet = false;  // as of Progress
  // Called with a sentence about each thing that is not as a user may expect it.
  std::function<void(const std::string& sentence)> warn;
};

// Goes on with what an interrupted call left, after a comparison with the source. If `folder` holds
// this very copy, all ranks are skipped. Throws Error (kConflict) if it holds anything else, and
// what FolderCopy and Generate throw.
GenerateResult Reshard(const ReshardRequest& request, WorkCounters* counters);

}  // namespace shardinit
