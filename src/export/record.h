// shardinit-export.json says what an export was made from, and gives the digest of every byte of
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/verify.h"
#include "export/export.h"
#include "formats/record.h"

namespace shardinit {

// Writes the beginning of the record: what decides the bytes of an export.
std::string WriteOrigin(const Plan& plan, const ExportRequest& request);

// Returns whether a record is of an export that has this origin.
bool IsRecordOf(std::string_view record, std::string_view origin);

// `digests[f][b]` is the digest of box b of file f.
std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests,
                        const std::vector<std::vector<uint32_t>>& crcs);

// Hashes every byte of every file that shardinit-export.json lists, `jobs` at a time, and looks for
// names that do not belong. No link is followed. Throws Error (kRefused) if that record is damaged.
VerifyResult VerifyExport(const Place& place, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
