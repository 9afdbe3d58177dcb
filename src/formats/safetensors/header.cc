#include "formats/safetensors/header.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"

namespace shardinit::safetensors {
namespace {

constexpr int64_t kPage = 4096;
constexpr size_t kLength = 8;  // bytes in front of the JSON

}  // namespace

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::f8e4m3fn:
      return "F8_E4M3";
    case DType::f8e5m2:
      return "F8_E5M2";
    case DType::i8:
      return "I8";
    case DType::i16:
      return "I16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
    case DType::u16:
      return "U16";
    case DType::u32:
      return "U32";
    case DType::u64:
      return "U64";
    case DType::boolean:
      return "BOOL";
  }
  Check(false, "a dtype that safetensors has no name for");
  return {};
}

FileLayout LayOutFile(std::string path, std::vector<FileBox> boxes, const Metadata& metadata) {
  SortByAlignment(&boxes);
  JsonWriter out;
  out.BeginObject();
  out.Key("__metadata__").BeginObject();
  for (const auto& [key, value] : metadata) out.Member(key, value);
  out.EndObject();
  int64_t end = 0;
  for (FileBox& box : boxes) {
    box.offset = end;
    end += BytesOf(box);
    out.Key(box.tensor->path).BeginObject().Member("dtype", NameOf(box.tensor->dtype));
    out.Member("shape", box.box.shape).Key("data_offsets").BeginArray();
    out.Value(box.offset).Value(end).EndArray().EndObject();
  }
  out.EndObject();
  std::string json = out.Take();
  // Spaces behind the JSON are allowed, so data can begin on a page.
  json.append((kPage - (kLength + json.size()) % kPage) % kPage, ' ');
  if (json.size() > kMaxHeader) {
    throw Error(ExitCode::kUsage,
                fmt::format("the header of `{}` would have {} bytes for {} tensors, but readers of "
                            "safetensors take {}",
                            path, json.size(), boxes.size(), kMaxHeader),
                "use a smaller `--max-shard-size`");
  }
  FileLayout file{std::move(path), std::string(kLength, '\0')};
  for (size_t i = 0; i < kLength; ++i) {
    file.head[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  }
  file.head += json;
  for (FileBox& box : boxes) box.offset += static_cast<int64_t>(file.head.size());
  file.boxes = std::move(boxes);
  return file;
}

}  // namespace shardinit::safetensors
