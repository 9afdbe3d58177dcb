// Writes one rank's file, from an empty temporary file to a file with a receipt.
#pragma once

#include <vector>

#include "base/new_file.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/receipt.h"

namespace shardinit {

// Leaves nothing behind unless Commit() was reached.
class RankWriter {
 public:
  // Creates the temporary file, allocates its space and writes its metadata. `folder` must outlive
  // it.
  RankWriter(const CheckpointFolder& folder, const Plan& plan, RankPlan rank,
             const Digest& plan_sha256, WorkCounters* counters);

  // Returns what is to be written, as TasksOf does; valid as long as this object lives.
  std::vector<BoxTask> Tasks();

  // Brings the data to disk, puts the file in place, then writes its receipt. Call it when all
  // tasks are done.
  void Commit();

 private:
  const CheckpointFolder& folder_;
  const RankPlan rank_;
  WorkCounters& counters_;
  Receipt receipt_;
  const FileLayout layout_;
  NewFile file_;
};

}  // namespace shardinit
