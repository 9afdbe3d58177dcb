// One rank's file, from an empty temporary file to a file with a receipt.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "generate/workers.h"
#include "manifest/receipt.h"

namespace shardinit {

// Removes its temporary file unless Commit() was reached.
class RankWriter {
 public:
  // Creates the temporary file, writes its metadata and allocates its space.
  RankWriter(const std::string& folder, const Plan& plan, RankPlan rank, const Digest& plan_sha256,
             WorkCounters* counters);
  ~RankWriter();
  RankWriter(const RankWriter&) = delete;

  // What is to be written; valid as long as this object lives.
  std::vector<BoxTask> Tasks();

  // Data to disk, file in place, then its receipt: called when all tasks are done.
  void Commit();

  const RankPlan& rank() const { return rank_; }

 private:
  const std::string folder_, path_;
  const RankPlan rank_;
  WorkCounters& counters_;
  std::string temporary_;
  Fd fd_, direct_;
  Receipt receipt_;
};

}  // namespace shardinit
