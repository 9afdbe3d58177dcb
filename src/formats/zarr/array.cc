// Reads untrusted arrays of zarr 2 and 3, in folders or in the OCDBT databases that Orbax and
// TensorStore write by default.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/frame.h"
#include "formats/little_endian.h"
#include "formats/parts.h"
#include "formats/zarr/chunks.h"
#include "formats/zarr/description.h"
#include "formats/zarr/keys.h"
#include "report/text.h"
#include "tensor/convert.h"

namespace shardinit {
namespace zarr {
namespace {

using nlohmann::json;

constexpr int64_t kDescriptionLimit = 1 << 20;

// How to read a missing chunk: not at all, or as the fill value. kFillOrZero reads zeros if the
// fill value is null, as TensorStore does for Orbax.
enum class Absent { kNothing, kFill, kFillOrZero };

// The most chunks of a folder that are missing or in shards. They take memory, but may take no
// space on disk.
constexpr int64_t kMostUnnamed = 1 << 22;

// Returns the bytes of an element that has an array's `fill_value`.
std::string FillOf(const json& value, const DTypeInfo& dtype, const std::string& folder) {
  if (dtype.dtype == DType::c64) {
    const bool is_pair = value.is_array() && value.size() == 2;
    const DTypeInfo& part = InfoOf(DType::f32);
    return FillOf(is_pair ? value[0] : value, part, folder) +
           FillOf(is_pair ? value[1] : json(0), part, folder);
  }
  uint64_t from = 0;
  DType type = DType::f64;
  const auto take = [&](DType as, const auto& number) {
    type = as;
    memcpy(&from, &number, sizeof number);
  };
  bool is_known = true;
  if (value.is_boolean()) {
    take(DType::u8, static_cast<uint8_t>(value.get<bool>()));
  } else if (value.is_number_unsigned()) {
    take(DType::u64, value.get<uint64_t>());
  } else if (value.is_number_integer()) {
    take(DType::i64, value.get<int64_t>());
  } else if (value.is_number_float()) {
    take(DType::f64, value.get<double>());
  } else if (value == "NaN") {
    take(DType::f64, std::numeric_limits<double>::quiet_NaN());
  } else if (value == "Infinity" || value == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    take(DType::f64, value == "Infinity" ? infinity : -infinity);
  } else {
    is_known = false;
  }
  std::string fill(static_cast<size_t>(dtype.bytes), '\0');
  const DType to = dtype.dtype == DType::boolean ? DType::u8 : dtype.dtype;
  if (!is_known || !Convert(&from, type, to, fill.data()) ||
      (dtype.dtype == DType::boolean && fill[0] > 1)) {
    RefuseArray(folder, fmt::format("its `fill_value` must be a number of its type {}, but is {}",
                                    dtype.name, Quote(value.dump())));
  }
  return fill;
}

class ArrayReader {
 public:
  ArrayReader(const Keys& keys, const std::string& where, const std::string& name, Absent absent,
              int64_t* unnamed_left)
      : keys_(keys), where_(where), name_(name), absent_(absent), unnamed_left_(unnamed_left) {}

  // Returns how many of the chunks are missing.
  int64_t absent_count() const { return absent_count_; }

  // Returns nullopt for a group.
  std::optional<TensorInFolder> Read() {
    const std::optional<Extent> old = keys_.Find(fmt::format("{}/{}", name_, kDescription2));
    const std::string_view file = old ? kDescription2 : kDescription3;
    const Extent text = old ? *old : keys_.Find(fmt::format("{}/{}", name_, file)).value();
    described_in_ = text.file;
    std::optional<Description> array = (old ? ReadDescription2 : ReadDescription3)(
        ReadExtent(text, false, kDescriptionLimit), where_);
    if (!array) return std::nullopt;
    array_ = *std::move(array);
    holding_ = {fmt::format("{}/{}", Escape(name_), file), array_.dtype, array_.shape, {}};
    const DTypeInfo* const dtype = FindDType(&ForeignNames::zarr, array_.dtype);
    // Skip chunks of empty arrays, or of types that no spec can ask for.
    if (dtype == nullptr || ElementCount(array_.shape) == 0) return std::move(holding_);
    dtype_ = dtype;
    chunk_bytes_ = ElementCount(array_.chunk) * dtype->bytes;
    const std::string& separator = array_.separator;
    ForEachChunk(array_.shape, array_.stored, separator, [&](const std::string& place, Box box) {
      // A zarr 3 scalar has the key `c`.
      const std::string chunk = array_.prefix.empty()  ? place
                                : array_.shape.empty() ? array_.prefix
                                                       : array_.prefix + separator + place;
      const std::optional<Extent> stored = keys_.Find(fmt::format("{}/{}", name_, chunk));
      if (!stored) {
        TakeUnnamed(1, chunk);
        AddAbsent(std::move(box), chunk);
      } else if (array_.is_sharded) {
        AddShard(*stored, box, chunk);
      } else {
        AddChunk(std::move(box), *stored, chunk);
      }
    });
    return std::move(holding_);
  }

 private:
  void TakeUnnamed(int64_t chunks, const std::string& name) {
    *unnamed_left_ -= chunks;
    if (*unnamed_left_ >= 0) return;
    RefuseArray(where_,
                fmt::format("with its chunk `{}`, more than {} chunks are missing or in shards",
                            name, Grouped(kMostUnnamed)),
                kOrbaxLine);
  }

  void AddAbsent(Box box, const std::string& chunk) {
    const json& value = array_.fill_value;
    if (absent_ == Absent::kNothing || (absent_ == Absent::kFill && value.is_null())) {
      RefuseArray(where_,
                  fmt::format("its chunk `{}` is missing{}", chunk,
                              absent_ == Absent::kNothing ? "" : ", and its `fill_value` is null"));
    }
    ++absent_count_;
    if (fill_.empty()) fill_ = FillOf(value.is_null() ? json(0) : value, *dtype_, where_);
    holding_.pieces.push_back({std::move(box), described_in_, 0, {}, fill_});
  }

  void AddChunk(Box box, const Extent& stored, const std::string& chunk) {
    if (!array_.is_zstd && stored.bytes != chunk_bytes_) {
      RefuseArray(where_, fmt::format("its chunk `{}` has {} bytes instead of {}", chunk,
                                      stored.bytes, chunk_bytes_));
    }
    FilePiece piece{std::move(box), stored.file, stored.offset};
    if (array_.is_zstd || stored.memory) {
      piece.offset = 0;
      piece.frame = std::make_shared<const Frame>(Frame{stored, array_.is_zstd, chunk_bytes_});
    }
    holding_.pieces.push_back(std::move(piece));
  }

  // Adds the chunks of a shard. Its index has the offset and the size of each chunk, then a
  // CRC-32C.
  void AddShard(const Extent& shard, const Box& box, const std::string& name) {
    constexpr uint64_t kMissing = ~uint64_t{0};
    constexpr int64_t kCrcBytes = 4;
    int64_t count = 1;
    for (size_t d = 0; d < box.shape.size(); ++d) count *= array_.stored[d] / array_.chunk[d];
    const int64_t index_bytes = 16 * count + kCrcBytes;
    TakeUnnamed(count, name);
    if (shard.bytes < index_bytes) {
      RefuseArray(where_,
                  fmt::format("its shard `{}` has {} bytes, but its index of {} chunks has {}",
                              name, shard.bytes, count, index_bytes));
    }
    Extent at = shard;
    at.bytes = index_bytes;
    if (!array_.index_is_first) at.offset += shard.bytes - index_bytes;
    const std::string index = ReadExtent(at, false, index_bytes);
    const std::string_view entries(index.data(), index.size() - kCrcBytes);
    if (Crc32c(entries) != FromLittleEndian(std::string_view(index).substr(entries.size()))) {
      RefuseArray(where_,
                  fmt::format("the CRC-32C of the index of its shard `{}` does not match", name));
    }
    size_t i = 0;
    ForEachChunk(array_.stored, array_.chunk, ".", [&](const std::string& place, Box chunk) {
      const uint64_t offset = FromLittleEndian(entries.substr(16 * i, 8));
      const uint64_t bytes = FromLittleEndian(entries.substr(16 * i + 8, 8));
      ++i;
      bool is_within = true;
      for (size_t d = 0; d < chunk.offset.size(); ++d) {
        chunk.offset[d] += box.offset[d];
        is_within = is_within && chunk.offset[d] < array_.shape[d];
      }
      if (!is_within) return;
      const std::string full_name = fmt::format("{}, {}", name, place);
      if (offset == kMissing && bytes == kMissing) return AddAbsent(std::move(chunk), full_name);
      const auto size = static_cast<uint64_t>(shard.bytes);
      if (offset > size || bytes > size - offset) {
        RefuseArray(where_, fmt::format("its chunk `{}` ends after its shard of {} bytes",
                                        full_name, shard.bytes));
      }
      Extent stored = shard;
      stored.offset += static_cast<int64_t>(offset);
      stored.bytes = static_cast<int64_t>(bytes);
      AddChunk(std::move(chunk), stored, full_name);
    });
  }

  const Keys& keys_;
  const std::string where_, name_;
  const Absent absent_;
  int64_t* const unnamed_left_;  // of kMostUnnamed
  std::string described_in_;     // the file with the description
  Description array_;
  const DTypeInfo* dtype_ = nullptr;
  std::string fill_;  // the bytes of a missing element
  int64_t chunk_bytes_ = 0, absent_count_ = 0;
  TensorInFolder holding_;
};

// Refuses arrays in subfolders that are not arrays, such as zarr groups.
void RefuseNested(const std::string& folder, const std::vector<std::string>& known) {
  WalkInput(folder, [&](const std::string& name, NameKind kind) {
    if (kind != NameKind::kFolder) return false;
    if (std::binary_search(known.begin(), known.end(), name)) return false;
    const std::string path = fmt::format("{}/{}/", folder, name);
    if (!InputExists(path + std::string(kDescription2)) &&
        !InputExists(path + std::string(kDescription3)))
      return true;
    throw Error(
        ExitCode::kRefused,
        fmt::format("`{}` has the array {} in a group, which is not read", folder, Quote(name)),
        "name the folder of the group");
  });
}

// Returns Orbax's metadata of the folder; null without it.
json ReadMetadata(const std::string& folder) {
  constexpr size_t kLimit = 256 << 20;
  std::string text;
  const std::string path = folder + "/_METADATA";
  return ReadInputIfExists(path, kLimit, &text) ? ParseJson(text, path) : json();
}

// Returns the names of the arrays in the tree that Orbax describes.
std::vector<std::string> NamesInTree(const json& in) {
  std::vector<std::string> names;
  const json tree = in.is_object() ? in.value("tree_metadata", json()) : json();
  if (!tree.is_object()) return names;
  for (const auto& [key, leaf] : tree.items()) {
    const json about = leaf.is_object() ? leaf.value("value_metadata", json()) : json();
    const json keys = leaf.is_object() ? leaf.value("key_metadata", json()) : json();
    if (!about.is_object() || !keys.is_array()) continue;
    const json type = about.value("value_type", json());
    if (type != "np.ndarray" && type != "jax.Array" && type != "scalar") continue;
    std::string name;
    for (const json& part : keys) {
      const json of = part.is_object() ? part.value("key", json()) : json();
      name += (name.empty() ? "" : ".") + (of.is_string() ? of.get<std::string>() : of.dump());
    }
    names.push_back(std::move(name));
  }
  return names;
}

std::optional<Contents> ReadFolder(const std::string& folder, const std::string& part) {
  if (NameOf(folder).starts_with("ocdbt.process_")) {
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` has only the chunks that one process wrote", folder),
                "name the folder that it is in");
  }
  const Keys keys(folder);
  const json metadata = ReadMetadata(folder);
  const std::vector<std::string> listed = NamesInTree(metadata);
  const std::vector<std::string> names = keys.ArrayNames(listed);
  if (names.empty() && !keys.is_database()) return std::nullopt;
  if (!keys.is_database()) RefuseNested(folder, names);
  Contents contents;
  for (const std::string& name : listed) {
    if (std::binary_search(names.begin(), names.end(), name)) continue;
    contents.lost = fmt::format("_METADATA lists {}, which is not there", Quote(name));
    break;
  }
  const bool writes_all = metadata.is_object() &&
                          metadata.value("store_array_data_equal_to_fill_value", json()) == true;
  const Absent absent = metadata.is_null() ? Absent::kFill
                        : writes_all       ? Absent::kNothing
                                           : Absent::kFillOrZero;
  std::vector<PartEntry> entries;
  for (const std::string& name : names) {
    // Arrays outside the model are not even opened.
    entries.push_back(
        {.keys = SplitAtDots(name), .kind = PartEntry::Kind::kTensor, .rank = 2, .is_float = true});
  }
  ModelChoice choice = ChooseModel(entries, KeyOrigin::kDots, part, folder);
  contents.part = std::move(choice.part);
  contents.others = std::move(choice.others);
  int64_t unnamed_left = kMostUnnamed;
  for (const size_t i : choice.entries) {
    ArrayReader reader(keys, fmt::format("{}/{}", folder, names[i]), names[i], absent,
                       &unnamed_left);
    std::optional<TensorInFolder> holding = reader.Read();
    if (!holding) continue;
    contents.tensors[names[i]] = *std::move(holding);
    if (reader.absent_count() == 0) continue;
    contents.findings.Add({Escape(names[i]), "",
                           fmt::format("lacks {}, whose elements are read as its fill value",
                                       Count(reader.absent_count(), "chunk"))});
  }
  return contents;
}

}  // namespace
}  // namespace zarr

extern const FormatReader kZarrReader = {
    .what = "zarr arrays",
    .dtype = &ForeignNames::zarr,
    .read = zarr::ReadFolder,
};

}  // namespace shardinit
