// shardinit-export.json says what an export was made from, and gives the digest of every byte of
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/verify.h"
#include "export/export.h"

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

// Returns the whole record: these lines, then their digest and the closing brace.
std::string WithDigest(std::string lines);

// A file in a record: its head, followed by boxes, each of which may have a text behind it.
struct RecordedFile {
  struct Part {
    std::string tensor;  // Empty: the head.
    int64_t offset, bytes;
    Digest digest;
  };
  std::string path;
  int64_t size = 0, boxes = 0;
  std::vector<Part> parts;  // parts without gaps
};

struct Record {
  const Format* format;
  std::vector<RecordedFile> files;
};

// Reads untrusted text. Throws Error (kRefused) that names `path`.
Record ReadRecord(std::string_view text, const std::string& path);

// Hashes every byte of every file that shardinit-export.json lists, `jobs` at a time, and looks for
// names that do not belong. No link is followed. Throws Error (kRefused) if that record is damaged.
VerifyResult VerifyExport(const Place& place, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
