// shardinit-export.json: what an export was made from, and the digest of every
// byte of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "export/export.h"

namespace shardinit {

// What decides the bytes of an export: how its record begins.
std::string WriteOrigin(const Plan& plan, const ExportRequest& request);

// `digests[f][b]` is that of box b of file f.
std::string WriteRecord(const Plan& plan, const ExportRequest& request,
                        const std::vector<FileLayout>& files,
                        const std::vector<std::vector<Digest>>& digests);

// The whole record, of the lines before the digest of itself, which has the last two lines.
std::string WithDigest(std::string lines);

// What a record says of a file: its head, and behind that boxes, each with what there is between it
// and the next.
struct RecordedFile {
  struct Part {
    std::string tensor;  // Empty: the head.
    int64_t offset, bytes;
    Digest digest;
  };
  std::string path;
  int64_t size = 0, boxes = 0;
  std::vector<Part> parts;  // Without gaps.
};

struct Record {
  const Format* format;
  std::vector<RecordedFile> files;
};

// Reads untrusted text. Throws Error (kRefused) that names `path`.
Record ReadRecord(std::string_view text, const std::string& path);

}  // namespace shardinit
