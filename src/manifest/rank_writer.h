// One rank's file, from an empty temporary file to a file with a receipt.
#pragma once

#include <memory>
#include <vector>

#include "generate/workers.h"
#include "manifest/receipt.h"

namespace shardinit {

// Nothing is left of it unless Commit() was reached.
class RankWriter {
 public:
  // Creates the temporary file, writes its metadata and allocates its space. `folder` must outlive
  // it.
  RankWriter(const CheckpointFolder& folder, const Plan& plan, RankPlan rank,
             const Digest& plan_sha256, WorkCounters* counters);

  // What is to be written; valid as long as this object lives.
  std::vector<BoxTask> Tasks();

  // Data to disk, file in place, then its receipt: called when all tasks are done.
  void Commit();

 private:
  const CheckpointFolder& folder_;
  const RankPlan rank_;
  WorkCounters& counters_;
  Receipt receipt_;
  std::unique_ptr<NewFile> file_;
  Fd direct_;
};

}  // namespace shardinit
