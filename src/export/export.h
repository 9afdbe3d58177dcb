// Exports a plan to another format: the folder appears whole or not at all.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoint/file_tasks.h"
#include "formats/format.h"

namespace shardinit {

struct ExportRequest {
  const Format* format;
  std::string folder;
  std::string only;                              // A pattern over paths; empty: all tensors.
  OptionValues options;                          // options of the format
  std::optional<OptimizerState> optimizer = {};  // The optimizer of the plan's tensors.
  TaskSource* source = nullptr;                  // Null: values are generated.
  WorkerOptions workers;
  // Called about ten times a second; `total` is the number of bytes there will be.
  std::function<void(const WorkCounters& counters, int64_t total)> progress;
};

struct ExportResult {
  int64_t tensors = 0, files = 0;
  int64_t bytes = 0;  // bytes of tensors
  // Whether a complete export of the same plan was there, so that nothing was done.
  bool was_there = false;
};

// Throws Error (kConflict) if the folder is there and holds anything else.
ExportResult Export(const Plan& plan, const ExportRequest& request, WorkCounters* counters);

}  // namespace shardinit
