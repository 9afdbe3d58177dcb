// Exports a plan to another format. A folder appears completely or not at all; in a bucket, the
// record is written last.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "checkpoint/file_tasks.h"
#include "formats/format.h"
#include "generate/workers.h"
#include "plan/part.h"
#include "plan/plan.h"

namespace shardinit {

struct ExportRequest {
  const Format* format;
  std::string folder;
  std::string only;                              // a pattern over paths; empty: all tensors
  OptionValues options;                          // options of the format
  std::optional<OptimizerState> optimizer = {};  // the optimizer of the plan's tensors
  // The `__metadata__` of safetensors files.
  std::map<std::string, std::string> metadata = {};
  std::map<std::string, std::string> extras = {};  // the texts of more files, by name
  TaskSource* source = nullptr;                    // null: values are generated
  // If given, makes only these ranks, which ascend. Other processes make the other ranks, with the
  // same `claim`: everything but the plan that decides the values.
  std::optional<std::vector<int64_t>> ranks = {};
  // Or makes only this part of the files, by their bytes. Other processes make the rest.
  std::optional<JobPart> part = {};
  std::string claim = {};
  WorkerOptions workers;
  // Called about ten times a second. `total` is the final number of bytes.
  std::function<void(const WorkCounters& counters, int64_t total)> progress;

  // Returns whether other processes make the rest.
  bool is_shared() const { return ranks || part; }
};

struct ExportResult {
  int64_t tensors = 0, files = 0;
  int64_t bytes = 0;  // bytes of tensors
  // Whether a complete export of the same plan already existed, so that nothing was done.
  bool was_there = false;
  std::vector<int64_t> missing = {};  // ranks that other processes have not made yet
};

// Exports a plan. Throws Error (kConflict) if the folder exists and holds anything else.
ExportResult Export(const Plan& plan, const ExportRequest& request, WorkCounters* counters);

// A tensor that both a folder and a plan have.
struct ComparedTensor {
  enum class Outcome { kEqual, kOtherValues, kOtherForm };  // form: type and shape
  std::string name;      // in the plan of a TensorFolder of the folder
  const Tensor* tensor;  // the plan's
  Outcome outcome;
};

struct Comparison {
  int64_t tensors = 0, bytes = 0;        // tensors and bytes whose values were compared
  int64_t optimizer_entries = 0;         // entries of an optimizer's state, which is not compared
  std::vector<ComparedTensor> compared;  // in the order of the plan
  Findings findings;                     // empty: all are equal
};

// Compares a folder with the values of the plan. The folder has files of a format that is read,
// from any tool, or is an intact checkpoint. Throws Error (kRefused) if a file is hostile or
// damaged, and kUsage if there is nothing to compare. `only` is a pattern over the paths of the
// plan; empty: all tensors. ChooseModel() explains `part`.
Comparison Compare(const std::string& folder, const Plan& plan, const WorkerOptions& options,
                   const std::function<void(const WorkCounters& counters)>& progress,
                   WorkCounters* counters, const std::string& only = {},
                   const std::string& part = {});

// Does the same for a checkpoint that Verify() found intact, with its `manifest`. Compares the
// generated boxes with the digests of the receipts, without reading the rank files again.
Comparison CompareVerified(const std::string& folder, std::string_view manifest, const Plan& plan,
                           const WorkerOptions& options,
                           const std::function<void(const WorkCounters& counters)>& progress,
                           WorkCounters* counters);

}  // namespace shardinit
