// Compares what a folder holds with what a spec says, value by value.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/verify.h"
#include "generate/workers.h"
#include "plan/plan.h"

namespace shardinit {

struct Comparison {
  int64_t tensors = 0, bytes = 0;  // tensors and bytes whose values were compared
  int64_t optimizer_entries = 0;   // entries of an optimizer's state, which is not compared
  Findings findings;               // Empty: all are equal.
};

// Compares the safetensors files, DCP files or zarr arrays of a folder, whoever wrote them,
// or an intact checkpoint, with the values of the plan. Throws Error (kRefused) if a file is
// hostile or damaged, and kUsage if there is nothing to compare.
Comparison Compare(const std::string& folder, const Plan& plan, const WorkerOptions& options,
                   const std::function<void(const WorkCounters& counters)>& progress,
                   WorkCounters* counters);

}  // namespace shardinit
