// Holds what `export` and `convert` share: the options of a format, and the writing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/copy.h"
#include "commands/options.h"
#include "export/export.h"
#include "formats/format.h"

namespace shardinit {

inline constexpr char kOwnFormat[] = "hdf5";  // a checkpoint of shardinit

struct ExportingOptions {
  // Accepts kOwnFormat as the format if `may_be_own`.
  void AddTo(CLI::App& app, bool may_be_own = false);
  // Adds the options of formats and the work options.
  void AddWorkTo(CLI::App& app, const char* what_jobs_do);

  std::string format, folder;
  std::map<const FormatOption*, std::string> of_format;  // as given
  WorkOptions work;
  bool json = false, has_own = false;

  bool is_own() const { return format == kOwnFormat; }
  // Returns the request that these options describe; kOwnFormat has no Format. Throws Error
  // (kUsage) if the format is unknown or lacks a given option.
  ExportRequest Request() const;
};

Error NotForFormat(std::string_view flag, const Format& format,
                   const std::vector<std::string>& others);

// Sets the ranks or the part of `request` from the options. `plan` is the plan of the request.
void SelectRanks(const RankOptions& options, const Plan& plan, ExportRequest* request);

// Writes the export or, in kOwnFormat, a checkpoint, and prints a summary. `copy` is the source of
// the elements; null: values are generated.
ExitCode RunExporting(const ExportingOptions& options, const Plan& plan, ExportRequest request,
                      FolderCopy* copy = nullptr);

}  // namespace shardinit
