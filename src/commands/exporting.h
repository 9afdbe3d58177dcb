// `export` and `convert` share this: a format with its options, and the writing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/copy.h"
#include "commands/options.h"
#include "export/export.h"
#include "formats/format.h"

namespace shardinit {

inline constexpr char kOwnFormat[] = "hdf5";  // a checkpoint of this tool

struct ExportingOptions {
  // The format may be kOwnFormat if `may_be_own`.
  void AddTo(CLI::App& app, bool may_be_own = false);
  // Adds the options of formats, and of how the work is done.
  void AddWorkTo(CLI::App& app, const char* what_jobs_do);

  std::string format, folder;
  std::map<const FormatOption*, std::string> of_format;  // as given
  WorkOptions work;
  bool json = false, has_own = false;

  // Throws Error (kUsage) for an unknown format.
  void RequireFormat() const;
  bool is_own() const { return format == kOwnFormat; }
  // Returns what these options say; kOwnFormat has no Format. Throws Error (kUsage) if an option
  // was given that the format does not have.
  ExportRequest Request() const;
};

Error NotForFormat(std::string_view flag, const Format& format,
                   const std::vector<std::string>& others);

// Asks for the ranks or the part that the options say. `plan` is that of the request.
void AskFor(const RankOptions& options, const Plan& plan, ExportRequest* request);

// Makes the export or, in kOwnFormat, a checkpoint, and prints what was made. `copy` is the source
// of the request, if that is a folder.
ExitCode RunExporting(const ExportingOptions& options, const Plan& plan, ExportRequest request,
                      FolderCopy* copy = nullptr);

}  // namespace shardinit
