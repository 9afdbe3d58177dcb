// Writes and checks shardinit-export.json, the record of an export's origin and all its digests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/verify.h"
#include "export/export.h"
#include "formats/record.h"

namespace shardinit {

// Returns the beginning of the record: everything that decides the bytes of an export.
std::string WriteOrigin(const Plan& plan, const ExportRequest& request);

// Returns whether the record of an export has this origin.
bool IsRecordOf(std::string_view record, std::string_view origin);

// Returns the whole record. `digests[f][b]` is the digest of box b of file f.
std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests,
                        const std::vector<std::vector<uint32_t>>& crcs);

// Hashes every byte of every file that shardinit-export.json lists, `jobs` at a time, and looks for
// names that do not belong. Follows no links. Throws Error (kRefused) if the record is damaged.
VerifyResult VerifyExport(const Place& place, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
