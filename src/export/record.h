// shardinit-export.json: what an export was made from, and the digest of every
// byte of it.
#pragma once

#include <string>
#include <vector>

#include "export/export.h"

namespace shardinit {

// What decides the bytes of an export: how its record begins.
std::string WriteOrigin(const Plan& plan, const ExportRequest& request);

// `digests[f][b]` is that of box b of file f.
std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests);

}  // namespace shardinit
