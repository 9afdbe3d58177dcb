// Exports that several processes make together, each some ranks or a part.
#pragma once

#include "export/export.h"

namespace shardinit {

// Writes the files of the ranks, or of the part, that the request has: files with elements are
// dealt to all ranks of the plan in turn, and cut into parts of equal bytes. The process that finds
// that nothing is missing writes the rest, and the folder gets its name. Returns whether it has it,
// from this process or from another one that makes the same parts.
bool ExportRanks(const Plan& plan, const ExportRequest& request, std::vector<FileLayout> files,
                 WorkCounters* counters, ExportResult* result);

}  // namespace shardinit
