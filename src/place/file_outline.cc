#include "place/file_outline.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/error.h"

namespace shardinit {
namespace {

constexpr int64_t kGapPiece = 1 << 20;

}  // namespace

void ForEachGap(const FileOutline& file, const std::function<void(std::string_view bytes)>& visit) {
  const std::shared_ptr<FileTexts> texts = file.Texts();
  std::vector<FilePart> boxes = file.boxes;
  std::ranges::sort(boxes, {}, &FilePart::offset);
  boxes.push_back({file.size, 0});
  int64_t at = 0;
  for (const FilePart& box : boxes) {
    while (at < box.offset) {
      const int64_t bytes = std::min(box.offset - at, kGapPiece);
      std::string gap(static_cast<size_t>(bytes), '\0');
      CopyTexts(texts->texts, at, bytes, gap.data());
      visit(gap);
      at += bytes;
    }
    at = std::max(at, box.offset + box.bytes);
  }
}

Digest HashGaps(const FileOutline& file) {
  Sha256 hash;
  ForEachGap(file, [&](std::string_view bytes) { hash.Update(bytes); });
  return hash.Finish();
}

void CopyTexts(const std::vector<FileText>& texts, int64_t begin, int64_t bytes, char* out) {
  const int64_t end = begin + bytes;
  auto text = std::partition_point(texts.begin(), texts.end(), [&](const FileText& t) {
    return t.offset + std::ssize(t.bytes) <= begin;
  });
  for (; text != texts.end() && text->offset < end; ++text) {
    const int64_t from = std::max(begin, text->offset);
    const int64_t to = std::min(end, text->offset + std::ssize(text->bytes));
    if (from >= to) continue;
    std::memcpy(out + (from - begin), text->bytes.data() + (from - text->offset),
                static_cast<size_t>(to - from));
  }
}

int64_t CopyCrc(const CrcPlace& place, uint32_t crc, int64_t begin, int64_t end, char* out) {
  int64_t copied = 0;
  for (int64_t i = 0; i < kCrcBytes; ++i) {
    const int64_t at = place.offset + i;
    if (at < begin || at >= end) continue;
    out[at - begin] = static_cast<char>(crc >> (8 * i) & 0xff);
    ++copied;
  }
  return copied;
}

void FillCrcs(const std::vector<uint32_t>& crcs, FileTexts* texts) {
  auto text = texts->texts.begin();
  for (const CrcPlace& place : texts->crcs) {
    const auto end = [&] { return text->offset + std::ssize(text->bytes); };
    while (text != texts->texts.end() && place.offset >= end()) ++text;
    Check(text != texts->texts.end() && place.offset >= text->offset &&
              place.offset + kCrcBytes <= end(),
          "a CRC that is in no text");
    CopyCrc(place, crcs[place.box], text->offset, end(), text->bytes.data());
  }
}

}  // namespace shardinit
