// Exports into buckets. Several processes may write one at once, and any of them may end at any
// moment: no object is ever replaced or removed, every one is made under the condition that there
// is none of its name, and what is there already is compared. shardinit-bucket(7) has the steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "export/export.h"

namespace shardinit {

// Makes the files that the request asks for. The process that finds that nothing is missing writes
// those without elements, those that readers begin with last, and then the record. Returns the
// record if the export was there before, whole, and nothing was done.
std::optional<std::string> ExportInBucket(const Plan& plan, const ExportRequest& request,
                                          std::vector<FileLayout> files, WorkCounters* counters,
                                          ExportResult* result);

}  // namespace shardinit
