// Reads shardinit-export.json, whose digests cover every byte of an export.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "formats/format.h"

namespace shardinit {

inline constexpr int kExportVersion = 2;  // version 1 had no digest of itself

// Returns the whole record: these lines, then their digest and the closing brace.
std::string WithDigest(std::string lines);
bool HasOwnDigest(std::string_view record);

// A file in a record: its head, then its boxes, each of which may be followed by a text.
struct RecordedFile {
  struct Part {
    std::string tensor;  // empty for the head
    int64_t offset, bytes;
    Digest digest;
  };
  std::string path;
  int64_t size = 0, boxes = 0;
  std::vector<Part> parts;  // without gaps
};

struct Record {
  const Format* format;
  std::vector<RecordedFile> files;
};

// Reads untrusted text. Throws Error (kRefused) that names `path`. Calls `visit` with everything
// that is in the record, of a known version, before it checks the rest.
Record ReadRecord(std::string_view text, const std::string& path,
                  const std::function<void(const nlohmann::json& in)>& visit = nullptr);

}  // namespace shardinit
