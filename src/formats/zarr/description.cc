#include "formats/zarr/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "report/text.h"

namespace shardinit::zarr {
namespace {

using nlohmann::json;

json MemberOf(const json& in, std::string_view key) {
  if (!in.is_object()) return {};
  const auto found = in.find(key);
  return found == in.end() ? json() : *found;
}

// Reads extents. The sum of two and the product of all cannot overflow.
Shape ReadExtents(const json& in, const char* key, int64_t least, const std::string& where) {
  const json found = MemberOf(in, key);
  Shape shape;
  int64_t count = 1;
  bool fits = found.is_array() && found.size() <= kMaxRank;
  for (size_t d = 0; fits && d < found.size(); ++d) {
    const json& extent = found[d];
    fits = extent.is_number_unsigned() && extent.get<uint64_t>() >> 48 == 0 &&
           extent.get<int64_t>() >= least &&
           !__builtin_mul_overflow(count, std::max<int64_t>(1, extent.get<int64_t>()), &count) &&
           count >> 59 == 0;
    if (fits) shape.push_back(extent.get<int64_t>());
  }
  if (!fits)
    RefuseArray(
        where,
        fmt::format(
            "its `{}` must be a list of sizes of at least {}, below 2^48 each and 2^59 together, "
            "not {}",
            key, least, Quote(found.dump())));
  return shape;
}

void RequireMember(const json& in, const char* key, const json& wanted, std::string_view in_text,
                   const std::string& where) {
  const json value = MemberOf(in, key);
  if (value == wanted) return;
  RefuseArray(where, fmt::format("its `{}` is not {}, but {}", key, in_text, Quote(value.dump())));
}

std::string ReadSeparator(const json& value, const std::string& where) {
  if (value != "." && value != "/")
    RefuseArray(where, "its `dimension_separator` is neither `.` nor `/`");
  return value.get<std::string>();
}

void RequireRank(const Shape& chunk, const Shape& shape, const std::string& where) {
  if (chunk.size() == shape.size()) return;
  RefuseArray(where, fmt::format("its chunks, {}, do not have as many dimensions as its shape, {}",
                                 InShape(chunk), InShape(shape)));
}

// The supported codecs of zarr 3, in this order: bytes, then zstd.
struct Codecs {
  bool is_zstd = false, is_sharded = false;
  json sharding;  // the configuration of shards
};

[[noreturn]] void RefuseCodec(const json& codec, const std::string& where) {
  RefuseArray(where, fmt::format("shardinit does not read its codec {}", Quote(codec.dump())),
              kOrbaxLine);
}

Codecs ReadCodecs(const json& in, const DTypeInfo& dtype, bool may_be_sharded,
                  const std::string& where) {
  Codecs codecs;
  if (!in.is_array() || in.empty()) {
    RefuseArray(where, fmt::format("its `codecs` must be a list, not {}", Quote(in.dump())));
  }
  const json name = MemberOf(in[0], "name"), configuration = MemberOf(in[0], "configuration");
  // One-byte types have no byte order.
  const json endian = MemberOf(configuration, "endian");
  const bool is_plain =
      name == "bytes" && (endian == "little" || (endian.is_null() && dtype.bytes == 1));
  codecs.is_sharded = may_be_sharded && name == "sharding_indexed";
  if (codecs.is_sharded) codecs.sharding = configuration;
  if (!is_plain && !codecs.is_sharded) RefuseCodec(in[0], where);
  for (size_t i = 1; i < in.size(); ++i) {
    if (i > 1 || codecs.is_sharded || MemberOf(in[i], "name") != "zstd") RefuseCodec(in[i], where);
    codecs.is_zstd = true;
  }
  return codecs;
}

// Refuses members that zarr 3 does not define, unless they allow readers to ignore them.
void RequireKnownMembers(const json& in, const std::string& where) {
  constexpr std::string_view kKnown[] = {
      "zarr_format",         "node_type",          "shape",  "data_type",  "chunk_grid",
      "fill_value",          "chunk_key_encoding", "codecs", "attributes", "dimension_names",
      "storage_transformers"};
  for (const auto& [key, value] : in.items()) {
    if (std::ranges::find(kKnown, key) != std::end(kKnown)) continue;
    if (MemberOf(value, "must_understand") == false) continue;
    RefuseArray(where, fmt::format("shardinit does not support its member {}", Quote(key)));
  }
}

void ReadSharding(const json& sharding, const DTypeInfo& dtype, Description* array,
                  const std::string& where) {
  array->is_sharded = true;
  array->chunk = ReadExtents(sharding, "chunk_shape", 1, where);
  RequireRank(array->chunk, array->shape, where);
  for (size_t d = 0; d < array->chunk.size(); ++d) {
    if (array->stored[d] % array->chunk[d] == 0) continue;
    RefuseArray(where, fmt::format("its chunks, {}, are not equal parts of its shards, {}",
                                   InShape(array->chunk), InShape(array->stored)));
  }
  array->is_zstd = ReadCodecs(MemberOf(sharding, "codecs"), dtype, false, where).is_zstd;
  const json index = MemberOf(sharding, "index_codecs");
  const bool is_known = index.is_array() && index.size() == 2 &&
                        MemberOf(index[0], "name") == "bytes" &&
                        MemberOf(MemberOf(index[0], "configuration"), "endian") == "little" &&
                        MemberOf(index[1], "name") == "crc32c";
  if (!is_known) RefuseCodec(index, where);
  const json location = MemberOf(sharding, "index_location");
  if (!location.is_null() && location != "end" && location != "start") {
    RefuseArray(where, fmt::format("its `index_location` is {}", Quote(location.dump())));
  }
  array->index_is_first = location == "start";
}

}  // namespace

void RefuseArray(const std::string& where, std::string_view what, std::string_view hint) {
  throw Error(ExitCode::kRefused,
              fmt::format("cannot read `{}` as a zarr array: {}", Escape(where), what),
              std::string(hint));
}

std::optional<Description> ReadDescription2(const std::string& text, const std::string& where) {
  const json in = ParseJson(text, where);
  Description array;
  RequireMember(in, "zarr_format", 2, "2", where);
  if (const json filters = MemberOf(in, "filters"); !filters.is_null()) {
    RefuseArray(where,
                fmt::format("shardinit does not read its `filters`, {}", Quote(filters.dump())),
                kOrbaxLine);
  }
  const json compressor = MemberOf(in, "compressor");
  array.is_zstd = MemberOf(compressor, "id") == "zstd";
  if (!compressor.is_null() && !array.is_zstd) {
    RefuseArray(where,
                fmt::format("shardinit reads the compressor zstd, but its `compressor` is {}",
                            Quote(compressor.dump())),
                kOrbaxLine);
  }
  RequireMember(in, "order", "C", "C", where);
  const json separator = MemberOf(in, "dimension_separator");
  array.separator = separator.is_null() ? "." : ReadSeparator(separator, where);
  const json dtype = MemberOf(in, "dtype");
  if (!dtype.is_string()) RefuseArray(where, "its `dtype` is not text");
  array.dtype = dtype.get<std::string>();
  array.shape = ReadExtents(in, "shape", 0, where);
  array.stored = array.chunk = ReadExtents(in, "chunks", 1, where);
  RequireRank(array.chunk, array.shape, where);
  array.fill_value = MemberOf(in, "fill_value");
  return array;
}

std::optional<Description> ReadDescription3(const std::string& text, const std::string& where) {
  const json in = ParseJson(text, where);
  if (MemberOf(in, "node_type") == "group") return std::nullopt;
  Description array;
  RequireMember(in, "zarr_format", 3, "3", where);
  RequireMember(in, "node_type", "array", "`array`", where);
  RequireKnownMembers(in, where);
  if (const json storage = MemberOf(in, "storage_transformers");
      !storage.is_null() && storage != json::array()) {
    RefuseArray(where, fmt::format("shardinit does not read its `storage_transformers`, {}",
                                   Quote(storage.dump())));
  }
  const json dtype = MemberOf(in, "data_type");
  // PyTorch uses the same names for these types.
  const DTypeInfo* const info =
      dtype.is_string() ? FindDType(&ForeignNames::torch, dtype.get<std::string>()) : nullptr;
  array.dtype = info != nullptr     ? std::string(ForeignNamesOf(info->dtype).zarr)
                : dtype.is_string() ? dtype.get<std::string>()
                                    : dtype.dump();
  array.shape = ReadExtents(in, "shape", 0, where);
  const json grid = MemberOf(in, "chunk_grid"), encoding = MemberOf(in, "chunk_key_encoding");
  if (MemberOf(grid, "name") != "regular") {
    RefuseArray(where,
                fmt::format("its `chunk_grid` is not `regular`, but {}", Quote(grid.dump())));
  }
  array.stored = array.chunk =
      ReadExtents(MemberOf(grid, "configuration"), "chunk_shape", 1, where);
  RequireRank(array.stored, array.shape, where);
  const json separator = MemberOf(MemberOf(encoding, "configuration"), "separator");
  const bool is_default = MemberOf(encoding, "name") == "default";
  if (!is_default && MemberOf(encoding, "name") != "v2") {
    RefuseArray(where, fmt::format("its `chunk_key_encoding` is not `default` or `v2`, but {}",
                                   Quote(encoding.dump())));
  }
  array.separator =
      separator.is_null() ? (is_default ? "/" : ".") : ReadSeparator(separator, where);
  if (is_default) array.prefix = "c";
  array.fill_value = MemberOf(in, "fill_value");
  if (info == nullptr) return array;  // It is not read.
  const Codecs codecs = ReadCodecs(MemberOf(in, "codecs"), *info, true, where);
  array.is_zstd = codecs.is_zstd;
  if (codecs.is_sharded) ReadSharding(codecs.sharding, *info, &array, where);
  return array;
}

}  // namespace shardinit::zarr
