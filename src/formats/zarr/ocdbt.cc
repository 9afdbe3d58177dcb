#include "formats/zarr/ocdbt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/input.h"
#include "formats/little_endian.h"

namespace shardinit::zarr {
namespace {

constexpr uint32_t kManifestMagic = 0x0cdb3a2a, kNodeMagic = 0x0cdb20de;
// By default, a node of TensorStore has at most 100 MB. Nodes can share children, and texts can
// share prefixes, so a small file can describe an enormous tree. Budget limits the whole tree.
constexpr int64_t kMostNodeBytes = 256 << 20, kMostTreeBytes = int64_t{1} << 30;
// The cost of a text and of a node in the budget, in addition to their bytes.
constexpr int64_t kTextCost = 128, kNodeCost = 4096;
constexpr uint64_t kMostKeyBytes = 4096;
constexpr int kMostHeight = 64;
// The offset and the length of the root of an empty database.
constexpr uint64_t kNothing = std::numeric_limits<uint64_t>::max();

[[noreturn]] void RefuseDatabase(const std::string& where, std::string_view what) {
  throw Error(ExitCode::kRefused, fmt::format("cannot read `{}` as a part of an OCDBT database: {}",
                                              Escape(where), what));
}

// Counts the memory that a database may still take.
class Budget {
 public:
  void Take(int64_t bytes, const std::string& where) {
    left_ -= bytes;
    if (left_ >= 0) return;
    RefuseDatabase(where,
                   fmt::format("its names and nodes take more than {} bytes", kMostTreeBytes));
  }

 private:
  int64_t left_ = kMostTreeBytes;
};

// Reads numbers and bytes from the front of a text.
class Cursor {
 public:
  Cursor(std::string_view rest, std::string where, Budget* budget)
      : rest_(rest), where_(std::move(where)), budget_(budget) {}

  std::string_view Bytes(uint64_t size) {
    if (size > rest_.size()) {
      RefuseDatabase(where_,
                     fmt::format("{} bytes are needed, but {} are left", size, rest_.size()));
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  uint64_t Fixed(size_t size) { return FromLittleEndian(Bytes(size)); }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Fixed(1);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    RefuseDatabase(where_, "a number has more than 64 bits");
  }
  // Reads a number of entries, each of which takes at least one byte.
  size_t Count() {
    const uint64_t count = Varint();
    if (count > rest_.size()) {
      RefuseDatabase(where_, fmt::format("{} entries cannot be in {} bytes", count, rest_.size()));
    }
    return static_cast<size_t>(count);
  }
  std::vector<uint64_t> Varints(size_t count) {
    std::vector<uint64_t> values(count);
    for (uint64_t& value : values) value = Varint();
    return values;
  }
  // Reads texts, each of which may share a prefix with the one before. `between` reads everything
  // between the lengths and the bytes.
  template <typename Between>
  std::vector<std::string> Texts(size_t count, const Between& between) {
    budget_->Take(static_cast<int64_t>(count) * kTextCost, where_);
    const std::vector<uint64_t> prefixes = Varints(count > 0 ? count - 1 : 0);
    const std::vector<uint64_t> suffixes = Varints(count);
    between();
    std::vector<std::string> texts;
    for (size_t i = 0; i < count; ++i) {
      std::string text;
      if (i > 0) {
        if (prefixes[i - 1] > texts.back().size()) {
          RefuseDatabase(where_, fmt::format("a name shares {} bytes with one of {} bytes",
                                             prefixes[i - 1], texts.back().size()));
        }
        text = texts.back().substr(0, prefixes[i - 1]);
      }
      text += Bytes(suffixes[i]);
      if (text.size() > kMostKeyBytes) {
        RefuseDatabase(
            where_, fmt::format("a name has {} bytes, more than {}", text.size(), kMostKeyBytes));
      }
      budget_->Take(std::ssize(text), where_);
      texts.push_back(std::move(text));
    }
    return texts;
  }
  void RequireEnd() const {
    if (!rest_.empty()) RefuseDatabase(where_, fmt::format("{} bytes are left over", rest_.size()));
  }

 private:
  std::string_view rest_;
  const std::string where_;
  Budget* const budget_;
};

// Unwraps a manifest or a node. The frame is: magic, length, version, compression, body, CRC-32C.
std::string BodyOf(const std::string& bytes, uint32_t magic, const std::string& where) {
  constexpr size_t kHead = 12, kCrc = 4;
  if (bytes.size() < kHead + 2 + kCrc) {
    RefuseDatabase(where, fmt::format("it has {} bytes", bytes.size()));
  }
  const std::string_view all = bytes;
  uint32_t found = 0;
  for (const char c : all.substr(0, 4)) found = found << 8 | static_cast<uint8_t>(c);
  if (found != magic)
    RefuseDatabase(where, fmt::format("it begins with {:08x}, not {:08x}", found, magic));
  if (const uint64_t length = FromLittleEndian(all.substr(4, 8)); length != all.size()) {
    RefuseDatabase(where, fmt::format("its length is {}, but it has {} bytes", length, all.size()));
  }
  const std::string_view checked = all.substr(0, all.size() - kCrc);
  if (FromLittleEndian(all.substr(checked.size())) != Crc32c(checked)) {
    RefuseDatabase(where, "its CRC-32C does not match");
  }
  const int version = checked[kHead], compression = checked[kHead + 1];
  if (version != 0) RefuseDatabase(where, fmt::format("its version is {}, not 0", version));
  if (compression != 0 && compression != 1)
    RefuseDatabase(where, fmt::format("its compression is {}, not 0 or 1", compression));
  std::string body(checked.substr(kHead + 2));
  if (compression == 0) return body;
  const auto memory = std::make_shared<const std::string>(std::move(body));
  return ReadExtent({where, 0, std::ssize(*memory), memory}, true, kMostNodeBytes);
}

struct NamedFile {
  std::string path;
  size_t base = 0;  // in nodes of this file, file names follow this many bytes of its path
};

std::vector<NamedFile> ReadFileTable(Cursor* cursor, const std::string& inherited,
                                     const std::string& where) {
  const size_t count = cursor->Count();
  std::vector<uint64_t> bases;
  const std::vector<std::string> names =
      cursor->Texts(count, [&] { bases = cursor->Varints(count); });
  std::vector<NamedFile> files;
  for (size_t i = 0; i < count; ++i) {
    if (bases[i] > names[i].size()) {
      RefuseDatabase(
          where, fmt::format("{} of {} bytes of a name are a folder", bases[i], names[i].size()));
    }
    files.push_back({inherited + names[i], inherited.size() + bases[i]});
    const std::string& path = files.back().path;
    if (path.starts_with('/') || path.find('\0') != path.npos ||
        ("/" + path + "/").find("/../") != path.npos || path.size() > kMostKeyBytes) {
      RefuseDatabase(where, fmt::format("{} is not the name of a file in the folder", Quote(path)));
    }
  }
  return files;
}

// The places of nodes, as columns of a table.
struct References {
  References(Cursor* cursor, size_t count)
      : files(cursor->Varints(count)),
        offsets(cursor->Varints(count)),
        lengths(cursor->Varints(count)) {
    for (int statistic = 0; statistic < 3; ++statistic) cursor->Varints(count);
  }
  std::vector<uint64_t> files, offsets, lengths;
};

class Database {
 public:
  explicit Database(const std::string& folder) : folder_(folder) {}

  std::map<std::string, Extent> Read() && {
    ReadManifest(folder_ + "/" + kOcdbtManifest, true);
    return std::move(values_);
  }

 private:
  void ReadManifest(const std::string& path, bool may_be_numbered) {
    const std::string body =
        BodyOf(ReadInput(path, static_cast<size_t>(kMostNodeBytes)), kManifestMagic, path);
    Cursor cursor(body, path, &budget_);
    cursor.Bytes(16);  // the UUID of the database
    const uint64_t kind = cursor.Fixed(1);
    cursor.Varint();  // the most bytes of a value in a node
    cursor.Varint();  // the most bytes of a node
    cursor.Fixed(1);  // the arity of the version tree
    const uint64_t compression = cursor.Varint();
    if (compression == 1) cursor.Fixed(4);  // its level
    if (kind == 1 && may_be_numbered) return ReadManifest(NumberedManifest(path), false);
    if (kind != 0) RefuseDatabase(path, fmt::format("its kind of manifest is {}", kind));
    const std::vector<NamedFile> files = ReadFileTable(&cursor, "", path);
    const size_t versions = cursor.Count();
    if (versions == 0) RefuseDatabase(path, "it has no version");
    cursor.Varints(versions);  // generations
    const std::string_view heights = cursor.Bytes(versions);
    const References roots(&cursor, versions);
    const size_t newest = versions - 1;
    if (roots.offsets[newest] == kNothing && roots.lengths[newest] == kNothing) return;
    ReadNode(files, roots, newest, static_cast<uint8_t>(heights[newest]), "", path);
  }

  // Returns the newest `manifest.0123456789abcdef`.
  std::string NumberedManifest(const std::string& path) const {
    constexpr std::string_view kStart = "manifest.";
    std::string newest;
    for (const std::string& name : NamesIn(folder_)) {
      if (name.starts_with(kStart) && name.size() == kStart.size() + 16 &&
          name.find_first_not_of("0123456789abcdef", kStart.size()) == name.npos) {
        newest = std::max(newest, name);
      }
    }
    if (newest.empty()) RefuseDatabase(path, "it is numbered, but `manifest.0…` is missing");
    return folder_ + "/" + newest;
  }

  Extent ExtentOf(const std::vector<NamedFile>& files, uint64_t file, uint64_t offset,
                  uint64_t bytes, const std::string& where) const {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    if (file >= files.size() || offset > kMost || bytes > kMost) {
      RefuseDatabase(where, fmt::format("{} bytes at {} of file {} of {} are not in a file", bytes,
                                        offset, file, files.size()));
    }
    return {folder_ + "/" + files[file].path, static_cast<int64_t>(offset),
            static_cast<int64_t>(bytes)};
  }

  void ReadNode(const std::vector<NamedFile>& files, const References& nodes, size_t i, int height,
                const std::string& prefix, const std::string& where) {
    const Extent extent =
        ExtentOf(files, nodes.files[i], nodes.offsets[i], nodes.lengths[i], where);
    const std::string& path = files[nodes.files[i]].path;
    const std::string place = fmt::format("{} at byte {}", extent.file, extent.offset);
    const std::string body = BodyOf(ReadExtent(extent, false, kMostNodeBytes), kNodeMagic, place);
    budget_.Take(std::ssize(body) + kNodeCost, place);
    Cursor cursor(body, place, &budget_);
    const int found = static_cast<int>(cursor.Fixed(1));
    if (found != height || height > kMostHeight) {
      RefuseDatabase(place, fmt::format("its height is {}, not {}", found, height));
    }
    const std::vector<NamedFile> named =
        ReadFileTable(&cursor, path.substr(0, files[nodes.files[i]].base), place);
    const size_t count = cursor.Count();
    if (height == 0) return ReadLeaf(&cursor, count, named, prefix, extent.file, place);
    std::vector<uint64_t> common;
    const std::vector<std::string> keys =
        cursor.Texts(count, [&] { common = cursor.Varints(count); });
    const References children(&cursor, count);
    cursor.RequireEnd();
    for (size_t child = 0; child < count; ++child) {
      if (common[child] > keys[child].size()) {
        RefuseDatabase(place, fmt::format("{} of {} bytes of a key are common", common[child],
                                          keys[child].size()));
      }
      ReadNode(named, children, child, height - 1, prefix + keys[child].substr(0, common[child]),
               place);
    }
  }

  void ReadLeaf(Cursor* cursor, size_t count, const std::vector<NamedFile>& files,
                const std::string& prefix, const std::string& node_file, const std::string& place) {
    const std::vector<std::string> keys = cursor->Texts(count, [] {});
    const std::vector<uint64_t> lengths = cursor->Varints(count);
    const std::string_view kinds = cursor->Bytes(count);
    const size_t stored = static_cast<size_t>(std::count(kinds.begin(), kinds.end(), '\1'));
    const std::vector<uint64_t> in_file = cursor->Varints(stored),
                                offsets = cursor->Varints(stored);
    for (size_t i = 0, s = 0; i < count; ++i) {
      Extent value;
      if (kinds[i] == '\1') {
        value = ExtentOf(files, in_file[s], offsets[s], lengths[i], place);
        ++s;
      } else if (kinds[i] == '\0') {
        const auto memory = std::make_shared<const std::string>(cursor->Bytes(lengths[i]));
        value = {node_file, 0, std::ssize(*memory), memory};
      } else {
        RefuseDatabase(place, fmt::format("a value is of kind {}", static_cast<uint8_t>(kinds[i])));
      }
      std::string key = prefix + keys[i];
      budget_.Take(std::ssize(key), place);
      if (!values_.empty() && key <= values_.rbegin()->first) {
        RefuseDatabase(place, fmt::format("the key {} is not in order", Quote(key)));
      }
      values_.emplace_hint(values_.end(), std::move(key), std::move(value));
    }
    cursor->RequireEnd();
  }

  const std::string folder_;
  Budget budget_;
  std::map<std::string, Extent> values_;
};

}  // namespace

std::map<std::string, Extent> ReadOcdbt(const std::string& folder) {
  return Database(folder).Read();
}

}  // namespace shardinit::zarr
