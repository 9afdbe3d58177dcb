#include "manifest/file_tasks.h"

#include "base/error.h"

namespace shardinit {
namespace {

void WriteTexts(const FileLayout& layout, const OutputFile& file) {
  file.WriteText(layout.head, 0);
  for (const FileText& text : layout.texts) file.WriteText(text.bytes, text.offset);
}

}  // namespace

void BeginFile(const FileLayout& layout, OutputFile& file) {
  if (!layout.boxes.empty()) file.Reserve(layout.size());
  if (layout.crcs.empty()) WriteTexts(layout, file);
  // Else as long as its texts, which may end in zeros.
  file.Resize(layout.size());
}

std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             std::vector<Digest>* digests, std::vector<uint32_t>* crcs) {
  std::vector<BoxTask> tasks;
  digests->resize(layout.boxes.size());
  if (!layout.crcs.empty()) crcs->resize(layout.boxes.size());
  for (size_t b = 0; b < layout.boxes.size(); ++b) {
    const FileBox& box = layout.boxes[b];
    tasks.push_back({box.tensor, box.box, {&file, box.offset}, &(*digests)[b]});
    if (!layout.crcs.empty()) tasks.back().crc = &(*crcs)[b];
  }
  return tasks;
}

void FinishFile(const std::vector<uint32_t>& crcs, FileLayout* layout, const OutputFile& file) {
  if (layout->crcs.empty()) return;
  std::string* text = &layout->head;
  int64_t offset = 0;
  size_t next = 0;
  for (const CrcPlace& place : layout->crcs) {
    while (place.offset >= offset + std::ssize(*text)) {
      Check(next < layout->texts.size(), "a CRC that stands in no text");
      text = &layout->texts[next].bytes;
      offset = layout->texts[next++].offset;
    }
    for (int64_t i = 0; i < 4; ++i) {
      text->at(static_cast<size_t>(place.offset - offset + i)) =
          static_cast<char>(crcs[place.box] >> (8 * i) & 0xff);
    }
  }
  WriteTexts(*layout, file);
}

}  // namespace shardinit
