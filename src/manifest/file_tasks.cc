#include "manifest/file_tasks.h"

namespace shardinit {

void BeginFile(const FileLayout& layout, OutputFile& file) {
  if (!layout.boxes.empty()) file.Reserve(layout.size());
  file.WriteText(layout.head, 0);
  for (const FileText& text : layout.texts) file.WriteText(text.bytes, text.offset);
  // Else as long as its texts, which may end in zeros.
  file.Resize(layout.size());
}

std::vector<BoxTask> TasksOf(const FileLayout& layout, const OutputFile& file,
                             const ElementSource& source, std::vector<Digest>* digests) {
  std::vector<BoxTask> tasks;
  digests->resize(layout.boxes.size());
  for (size_t b = 0; b < layout.boxes.size(); ++b) {
    const FileBox& box = layout.boxes[b];
    tasks.push_back({box.tensor, box.box, {&file, box.offset}, &(*digests)[b]});
    if (source) tasks.back().source = source(*box.tensor, box.box);
  }
  return tasks;
}

}  // namespace shardinit
