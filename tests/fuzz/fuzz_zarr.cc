// Feeds any bytes to the readers of zarr; the first byte selects the kind: descriptions of arrays,
// a zstd frame, or files of a folder, in which OCDBT databases and shards get correct checksums.
// Each must be refused, or read the same in parts as together.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/frame.h"
#include "formats/little_endian.h"
#include "formats/zarr/description.h"
#include "fuzz/folder.h"

namespace shardinit {
namespace {

using zarr::Description;

constexpr size_t kCrcBytes = 4;

void CorrectCrc(std::string* content, size_t begin, size_t end) {
  const std::string_view checked = std::string_view(*content).substr(begin, end - begin);
  if (checked.size() < kCrcBytes) return;
  const uint32_t crc = Crc32c(checked.substr(0, checked.size() - kCrcBytes));
  content->replace(end - kCrcBytes, kCrcBytes, LittleEndian(crc, kCrcBytes));
}

// Corrects the checksums of manifests and nodes of OCDBT.
void CorrectNodes(std::string* content) {
  for (const std::string_view magic : {"\x0c\xdb\x3a\x2a", "\x0c\xdb\x20\xde"}) {
    for (size_t at = content->find(magic); at != content->npos; at = content->find(magic, at + 1)) {
      if (content->size() - at < 12) break;
      const uint64_t length = FromLittleEndian(std::string_view(*content).substr(at + 4, 8));
      if (length <= content->size() - at) CorrectCrc(content, at, at + length);
    }
  }
}

std::optional<Description> TryDescription(const std::string& text, bool is_newer) {
  try {
    return (is_newer ? zarr::ReadDescription3 : zarr::ReadDescription2)(text, "array");
  } catch (const Error&) {
    return {};
  }
}

// Corrects the checksums of the indices of shards next to each zarr.json.
void CorrectShards(std::map<std::string, std::string>* files) {
  for (const auto& [name, text] : *files) {
    constexpr std::string_view kName = "/zarr.json";
    const std::optional<Description> array =
        name.ends_with(kName) ? TryDescription(text, true) : std::nullopt;
    if (!array || !array->is_sharded) continue;
    size_t count = 1;
    for (size_t d = 0; d < array->chunk.size(); ++d) {
      count *= static_cast<size_t>(array->stored[d] / array->chunk[d]);
    }
    const std::string chunks = name.substr(0, name.size() - kName.size()) + "/c";
    for (auto& [file, content] : *files) {
      if (!file.starts_with(chunks) || count > content.size() / 16) continue;
      const size_t bytes = 16 * count + kCrcBytes;
      if (bytes > content.size()) continue;
      const size_t begin = array->index_is_first ? 0 : content.size() - bytes;
      CorrectCrc(&content, begin, begin + bytes);
    }
  }
}

int TryFolder(std::string_view bytes, const std::string& folder) {
  std::map<std::string, std::string> files = FilesIn(bytes);
  for (auto& [name, content] : files) CorrectNodes(&content);
  CorrectShards(&files);
  WriteFiles(folder, files);
  return TryRead(kZarrReader, folder);
}

// Returns 1 if the text describes an array.
int TryDescriptions(const std::string& text) {
  int found = 0;
  for (const bool is_newer : {false, true}) {
    const std::optional<Description> array = TryDescription(text, is_newer);
    if (!array) continue;
    found = 1;
    int64_t elements = 0;
    for (const Shape* const shape : {&array->shape, &array->stored, &array->chunk}) {
      if (shape->size() != array->shape.size()) abort();
      elements = ElementCount(*shape);
      if (elements < 0) abort();
    }
    for (size_t d = 0; d < array->chunk.size(); ++d) {
      if (array->chunk[d] < 1 || array->stored[d] % array->chunk[d] != 0) abort();
    }
  }
  return found;
}

// The first byte is how many bytes more the frame should have. Returns 1 if the frame is whole.
int TryFrame(std::string_view bytes) {
  constexpr int64_t kMost = 1 << 20;
  if (bytes.empty()) return 0;
  const auto memory = std::make_shared<const std::string>(bytes.substr(1));
  const Extent extent = {"frame", 0, std::ssize(*memory), memory};
  std::optional<std::string> whole;
  try {
    whole = ReadExtent(extent, true, kMost);
  } catch (const Error&) {
  }
  const int64_t more = bytes[0], size = std::max<int64_t>(1, whole ? std::ssize(*whole) + more : 9);
  const auto frame = std::make_shared<const Frame>(Frame{extent, true, size});
  std::string parts(static_cast<size_t>(size), '\0');
  bool is_read = true;
  try {
    // The last third is read first, so that a frame is decoded twice.
    for (const auto& [begin, end] : {std::pair(size - size / 3, size),
                                     {0, size / 2},
                                     {size / 2, size - size / 3},
                                     {size / 2, size}}) {
      if (begin == end) continue;
      ReadFrame(frame, begin, end - begin, &parts[static_cast<size_t>(begin)]);
    }
  } catch (const Error&) {
    is_read = false;
  }
  CloseFrames();
  const bool is_right = whole && size == std::ssize(*whole);
  if (is_read != is_right || (is_right && parts != *whole)) abort();
  return is_right ? 1 : 0;
}

// Returns 0 if nothing was read.
int TryPart(std::string_view bytes, const std::string& folder) {
  if (bytes.empty()) return 0;
  switch (bytes[0]) {
    case 'f':
      return TryFolder(bytes.substr(1), folder);
    case 'd':
      return TryDescriptions(std::string(bytes.substr(1)));
    case 'z':
      return TryFrame(bytes.substr(1));
  }
  return 0;
}

}  // namespace
}  // namespace shardinit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardinit;
  static const std::filesystem::path folder =
      "/dev/shm/shardinit-fuzz-zarr-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  try {
    TryPart({reinterpret_cast<const char*>(data), size}, folder.string());
  } catch (const Error& e) {
    if (FindBadText(RenderError(e.what(), e.hint()))) abort();
  }
  std::filesystem::remove_all(folder);
  return 0;
}
