// A plan in another format: a folder that appears whole or not at all.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "formats/format.h"
#include "manifest/file_tasks.h"

namespace shardinit {

struct ExportRequest {
  const Format* format;
  std::string folder;
  std::string only;                              // A pattern over paths; empty: all tensors.
  OptionValues options;                          // Of the format.
  std::optional<OptimizerState> optimizer = {};  // Of the plan's tensors.
  TaskSource* source = nullptr;                  // Null: values are generated.
  WorkerOptions workers;
  // Called about ten times a second with the bytes there will be.
  std::function<void(const WorkCounters& counters, int64_t total)> progress;
};

struct ExportResult {
  int64_t tensors = 0, files = 0;
  int64_t bytes = 0;       // Of tensors.
  bool was_there = false;  // A complete export of the same plan: nothing was done.
};

// Throws Error (kConflict) if the folder is there and holds anything else.
ExportResult Export(const Plan& plan, const ExportRequest& request, WorkCounters* counters);

}  // namespace shardinit
