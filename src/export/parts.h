// Exports that several processes make together, each some ranks.
#pragma once

#include "export/export.h"

namespace shardinit {

// Writes the files of the ranks that the request has: files with elements are dealt to all ranks of
// the plan in turn. The process that finds that no other rank is missing writes the rest, and the
// folder gets its name.
void ExportRanks(const Plan& plan, const ExportRequest& request, std::vector<FileLayout> files,
                 WorkCounters* counters, ExportResult* result);

}  // namespace shardinit
