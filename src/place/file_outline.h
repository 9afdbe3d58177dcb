// Describes a file before it is written: its size, the known texts, and the ranges whose bytes come
// later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace shardinit {

inline constexpr int64_t kCrcBytes = 4;

struct FilePart {
  int64_t offset, bytes;
};

struct FileText {
  int64_t offset;
  std::string bytes;
};

// The location of the CRC-32 of a box's bytes: four bytes within a text of the file, zeros until
// the box is written. `box` is the index of the box.
struct CrcPlace {
  int64_t offset;
  size_t box;
};

struct FileTexts {
  std::vector<FileText> texts;      // ascending; bytes outside of texts and boxes are zeros
  std::vector<CrcPlace> crcs = {};  // ascending
};

struct FileOutline {
  std::string path;             // relative to its place
  int64_t size = 0;             // bytes
  std::vector<FilePart> boxes;  // ranges whose bytes come later; ascending if there are CRCs
  bool has_crcs = false;        // whether the texts contain CRCs of boxes
  std::function<std::shared_ptr<FileTexts>()> texts = {};  // empty: no texts
  // Stored with the file where the place supports it. Names are in lower case.
  std::map<std::string, std::string> metadata = {};

  std::shared_ptr<FileTexts> Texts() const {
    return texts ? texts() : std::make_shared<FileTexts>();
  }
};

// Calls `visit` with the bytes of the file outside all boxes, in order.
void ForEachGap(const FileOutline& file, const std::function<void(std::string_view bytes)>& visit);
// Returns the SHA-256 of the bytes outside all boxes.
Digest HashGaps(const FileOutline& file);

// Copies the bytes of texts in [begin, begin + bytes) to `out`, which is that range of the file.
void CopyTexts(const std::vector<FileText>& texts, int64_t begin, int64_t bytes, char* out);

// Copies the bytes of a CRC in [begin, end) to `out`, which is that range of the file. Returns the
// number of copied bytes.
int64_t CopyCrc(const CrcPlace& place, uint32_t crc, int64_t begin, int64_t end, char* out);

// Writes the CRCs of all boxes into the texts.
void FillCrcs(const std::vector<uint32_t>& crcs, FileTexts* texts);

}  // namespace shardinit
