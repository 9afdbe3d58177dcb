// `export` and `convert` share this: a format with its options, and the writing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "commands/options.h"
#include "export/export.h"
#include "formats/format.h"

namespace shardinit {

struct ExportingOptions {
  // `others` are names of formats that are no exports.
  void AddTo(CLI::App& app, const std::vector<std::string>& others = {});
  // Adds the options of formats, and of how the work is done.
  void AddWorkTo(CLI::App& app, const char* what_jobs_do);

  std::string format, folder;
  std::map<const FormatOption*, std::string> of_format;  // as given
  WorkOptions work;
  bool json = false;

  // Returns what these options say. Throws Error (kUsage) if one was given that the format does not
  // have.
  ExportRequest Request() const;
};

// Throws Error (kUsage) for unknown names.
const Format* FormatOf(const std::string& name, std::vector<std::string> others = {});

Error NotForFormat(std::string_view flag, const Format& format,
                   const std::vector<std::string>& others);

// Says that other processes have not made these ranks yet.
void PrintUnfinished(const std::string& folder, const std::vector<int64_t>& missing);

// Asks for the ranks or the part that the options say. `plan` is that of the request.
void AskFor(const RankOptions& options, const Plan& plan, ExportRequest* request);

// Makes the export, and prints what was made.
ExitCode RunExporting(const ExportingOptions& options, const Plan& plan, ExportRequest request);

}  // namespace shardinit
