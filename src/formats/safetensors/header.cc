#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/json.h"
#include "formats/foreign_names.h"
#include "formats/little_endian.h"
#include "formats/safetensors/file.h"

namespace shardinit::safetensors {
namespace {

constexpr int64_t kPage = 4096;
constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kLength = 8;  // bytes before the JSON

}  // namespace

FileLayout LayOutFile(std::string path, std::vector<FileBox> boxes, const Metadata& metadata) {
  SortByAlignment(&boxes);
  JsonWriter out;
  out.BeginObject();
  out.Key(kMetadata).BeginObject();
  for (const auto& [key, value] : metadata) out.Member(key, value);
  out.EndObject();
  int64_t end = 0;
  for (FileBox& box : boxes) {
    if (box.tensor->path() == kMetadata) {
      throw Usage(fmt::format("`{}` is not the name of a tensor in safetensors files", kMetadata),
                  "write another format, or leave the tensor out with `--drop`");
    }
    box.offset = end;
    end += BytesOf(box);
    out.Key(box.tensor->path())
        .BeginObject()
        .Member("dtype", ForeignNamesOf(box.tensor->dtype()).safetensors);
    out.Member("shape", InNumbers(box.box.shape, box.tensor->dtype()))
        .Member("data_offsets", std::array{box.offset, end});
    out.EndObject();
  }
  out.EndObject();
  std::string json = out.Take();
  // Spaces after the JSON are allowed, so the data can begin on a page.
  json.append((kPage - (kLength + json.size()) % kPage) % kPage, ' ');
  if (json.size() > kMaxHeader) {
    throw Usage(fmt::format("the header of `{}` would have {} bytes for {} tensors, but readers of "
                            "safetensors take {}",
                            path, json.size(), boxes.size(), kMaxHeader),
                "use a smaller `--max-shard-size`");
  }
  FileLayout file{std::move(path), LittleEndian(json.size(), kLength) + json};
  for (FileBox& box : boxes) box.offset += static_cast<int64_t>(file.head.size());
  file.boxes = std::move(boxes);
  return file;
}

}  // namespace shardinit::safetensors
