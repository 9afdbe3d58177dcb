// Feeds any bytes to all readers of folders, as files: each is a line `NAME SIZE` and SIZE bytes.
// Readers must refuse the folder, or return tensors that can be read from within its files.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/pieces.h"

namespace shardinit {
namespace {

constexpr size_t kMostFiles = 40;

bool IsPlainName(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() < 200 && name.front() != '/' && name.back() != '/' &&
         name.find("..") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), is_plain);
}

// Writes the files, skipping files that cannot be created.
void WriteFiles(const std::filesystem::path& folder, std::string_view bytes) {
  for (size_t files = 0; !bytes.empty() && files < kMostFiles; ++files) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return;
    const std::string_view line = bytes.substr(0, end);
    const size_t space = std::min(line.rfind(' '), line.size());
    const std::string_view name = line.substr(0, space);
    const int64_t size =
        ParseNumber<int64_t>(line.substr(std::min(space + 1, line.size()))).value_or(0);
    bytes.remove_prefix(end + 1);
    const std::string_view content =
        bytes.substr(0, static_cast<size_t>(std::max<int64_t>(size, 0)));
    bytes.remove_prefix(content.size());
    if (!IsPlainName(name)) continue;
    std::error_code ignored;
    std::filesystem::create_directories((folder / name).parent_path(), ignored);
    std::ofstream(folder / name, std::ios::binary) << content;
  }
}

// Returns the number of tensors read.
int TryRead(const FormatReader& reader, const std::string& folder) {
  const std::optional<Contents> contents = reader.read(folder, {});
  if (!contents) return 0;
  int tensors = 0;
  for (const auto& [name, holding] : contents->tensors) {
    const DTypeInfo* const dtype = FindDType(reader.dtype, holding.dtype);
    if (dtype == nullptr) continue;
    RequireWhole(name, holding, folder);
    for (const FilePiece& piece : holding.pieces) {
      const auto size = static_cast<int64_t>(std::filesystem::file_size(piece.file));
      const int64_t bytes = ElementCount(piece.box.shape) * dtype->bytes;
      if (piece.offset < 0 || bytes < 0 || piece.offset > size - bytes) abort();
    }
    const int64_t elements = ElementCount(holding.shape), count = std::min<int64_t>(elements, 100);
    std::vector<uint64_t> out(static_cast<size_t>(count) * 2);
    const Box whole = WholeOf(holding.shape);
    ReadPieces(holding.pieces, dtype->bytes, whole, 0, count, out.data());
    ReadPieces(holding.pieces, dtype->bytes, whole, elements - count, count, out.data());
    ++tensors;
  }
  return tensors;
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  static const std::filesystem::path folder =
      "/dev/shm/shardinit-fuzz-folder-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  WriteFiles(folder, {reinterpret_cast<const char*>(data), size});
  for (const FormatReader* const reader : FormatReaders()) {
    try {
      TryRead(*reader, folder.string());
    } catch (const Error& e) {
      if (FindBadText(RenderError(e.what(), e.hint()))) abort();
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
