// Writes the files that a fuzz target gets, and reads them as a folder of tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/parse_number.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/frame.h"
#include "formats/pieces.h"

namespace shardinit {

inline bool IsPlainName(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() < 200 && name.front() != '/' && name.back() != '/' &&
         name.find("..") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), is_plain);
}

// Returns the content of each file by its name. A file is a line `NAME SIZE` and SIZE bytes.
inline std::map<std::string, std::string> FilesIn(std::string_view bytes) {
  constexpr size_t kMostFiles = 40;
  std::map<std::string, std::string> found;
  for (size_t files = 0; !bytes.empty() && files < kMostFiles; ++files) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = bytes.substr(0, end);
    const size_t space = std::min(line.rfind(' '), line.size());
    const std::string_view name = line.substr(0, space);
    const int64_t size =
        ParseNumber<int64_t>(line.substr(std::min(space + 1, line.size()))).value_or(0);
    bytes.remove_prefix(end + 1);
    const std::string_view content =
        bytes.substr(0, static_cast<size_t>(std::max<int64_t>(size, 0)));
    bytes.remove_prefix(content.size());
    if (IsPlainName(name)) found[std::string(name)] = content;
  }
  return found;
}

// Writes the files, skipping files that cannot be created.
inline void WriteFiles(const std::filesystem::path& folder,
                       const std::map<std::string, std::string>& files) {
  for (const auto& [name, content] : files) {
    std::error_code ignored;
    std::filesystem::create_directories((folder / name).parent_path(), ignored);
    std::ofstream(folder / name, std::ios::binary) << content;
  }
}

// Aborts if elements of the piece are outside of its file. Databases do not open the files of their
// values before they are read.
inline void NeedWithinFile(const FilePiece& piece, int64_t bytes, bool is_database) {
  if (piece.offset < 0 || bytes < 0) abort();
  if (!piece.fill.empty() || (is_database && piece.frame == nullptr)) return;
  const int64_t size = piece.frame != nullptr
                           ? piece.frame->bytes
                           : static_cast<int64_t>(std::filesystem::file_size(piece.file));
  if (piece.offset > size - bytes) abort();
}

// Returns the number of tensors read.
inline int TryRead(const FormatReader& reader, const std::string& folder) {
  const std::optional<Contents> contents = reader.read(folder, {});
  if (!contents) return 0;
  const bool is_database = std::filesystem::exists(folder + "/manifest.ocdbt");
  int tensors = 0;
  for (const auto& [name, holding] : contents->tensors) {
    const DTypeInfo* const dtype = FindDType(reader.dtype, holding.dtype);
    if (dtype == nullptr) continue;
    // Chunks at the edges of zarr's arrays extend beyond the array.
    if (&reader != &kZarrReader) RequireWhole(name, holding, folder);
    for (const FilePiece& piece : holding.pieces) {
      NeedWithinFile(piece, ElementCount(piece.box.shape) * dtype->bytes, is_database);
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

}  // namespace shardinit
