#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/input.h"
#include "formats/little_endian.h"
#include "formats/safetensors/file.h"
#include "report/text.h"

namespace shardinit::safetensors {
namespace {

using nlohmann::json;

template <typename... T>
[[noreturn]] void Refuse(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw Error(ExitCode::kRefused, fmt::format("`{}` is not a safetensors file: {}", path,
                                              fmt::format(what, std::forward<T>(of)...)));
}

// Follows links: a cache of the Hub has them.
std::string ReadJson(const std::string& path, int64_t* data, int64_t* file_size) {
  const InputFile file(path);
  const int64_t size = *file_size = file.size();
  if (size < 8) Refuse(path, "it has {} bytes, fewer than its header's length", size);
  char prefix[8];
  file.Read(0, sizeof prefix, prefix);
  const uint64_t length = FromLittleEndian({prefix, sizeof prefix});
  const uint64_t rest = static_cast<uint64_t>(size) - sizeof prefix;
  if (length > rest) {
    Refuse(path, "its header should have {} bytes, but only {} follow its length", length, rest);
  }
  if (length > kMaxHeader) {
    Refuse(path, "its header should have {} bytes, but at most {} are read", length, kMaxHeader);
  }
  std::string text(length, '\0');
  file.Read(sizeof prefix, std::ssize(text), text.data());
  *data = static_cast<int64_t>(sizeof prefix + length);
  return text;
}

// Reads a list of whole numbers, each below 2^62; `what` names it in messages.
Shape ReadShape(const json& in, const std::string& path, const char* what,
                const std::string& name) {
  Shape shape;
  const auto refuse = [&] {
    Refuse(path, "the {} of {} must be a list of at most {} whole numbers, not {}", what,
           Quote(name), kMaxRank, Quote(in.dump()));
  };
  if (!in.is_array() || in.size() > kMaxRank) refuse();
  int64_t count = 1;
  for (const json& extent : in) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() >> 62 != 0) refuse();
    shape.push_back(extent.get<int64_t>());
    if (shape.back() != 0 && __builtin_mul_overflow(count, shape.back(), &count)) {
      Refuse(path, "{} has more than 2^63 - 1 elements", Quote(name));
    }
  }
  return shape;
}

// Converts a shape or an offset of numbers.
Shape ElementsOf(const Shape& place, const DTypeInfo* dtype, const std::string& path,
                 const char* what, const std::string& name) {
  if (dtype == nullptr) return place;
  const std::optional<Shape> found = InElements(place, dtype->dtype);
  if (found) return *found;
  Refuse(path, "the {} of {}, {}, does not end in a multiple of {}: {} numbers of {} share {}",
         what, Quote(name), InShape(place), dtype->numbers, dtype->numbers, dtype->name,
         Count(dtype->bytes, "byte"));
}

Entry ReadEntry(const std::string& name, const json& in, const std::string& path) {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!in.is_object() || !in.contains(key)) {
      Refuse(path, "the entry of {} has no `{}`", Quote(name), key);
    }
  }
  if (!in["dtype"].is_string()) Refuse(path, "the `dtype` of {} is not text", Quote(name));
  const json& offsets = in["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned() || offsets[0] > offsets[1] ||
      offsets[1].get<uint64_t>() >> 62 != 0) {
    Refuse(path, "the `data_offsets` of {} must be two whole numbers, the lower one first, not {}",
           Quote(name), Quote(offsets.dump()));
  }
  Entry entry{name, in["dtype"].get<std::string>(), {}, offsets[0].get<int64_t>(), 0};
  entry.bytes = offsets[1].get<int64_t>() - entry.offset;
  const DTypeInfo* const dtype = FindDType(&ForeignNames::safetensors, entry.dtype);
  const Shape shape = ReadShape(in["shape"], path, "shape", name);
  entry.box = WholeOf(ElementsOf(shape, dtype, path, "shape", name));
  int64_t bytes = 0;
  if (dtype != nullptr &&
      (__builtin_mul_overflow(ElementCount(entry.box.shape), int64_t{dtype->bytes}, &bytes) ||
       bytes != entry.bytes)) {
    Refuse(path, "{} has {} bytes, but its shape has {} elements of {}", Quote(name), entry.bytes,
           ElementCount(entry.box.shape), entry.dtype);
  }
  return entry;
}

// Sets the offsets of boxes from DCP_SHARDING_INFO, which is JSON inside the header's JSON.
void PlaceBoxes(const json& metadata, const std::string& path, std::vector<Entry>* entries) {
  if (!metadata.is_object()) Refuse(path, "`__metadata__` is not an object");
  const auto info = metadata.find("DCP_SHARDING_INFO");
  if (info == metadata.end()) return;
  if (!info->is_string()) Refuse(path, "`DCP_SHARDING_INFO` is not text");
  const json places = ParseJson(info->get_ref<const std::string&>(), path);
  for (Entry& entry : *entries) {
    if (!places.is_object() || !places.contains(entry.name) || !places[entry.name].is_object() ||
        !places[entry.name].contains("saved_offsets")) {
      Refuse(path, "`DCP_SHARDING_INFO` has no offset for {}", Quote(entry.name));
    }
    entry.box.offset =
        ElementsOf(ReadShape(places[entry.name]["saved_offsets"], path, "offset", entry.name),
                   FindDType(&ForeignNames::safetensors, entry.dtype), path, "offset", entry.name);
    if (entry.box.offset.size() != entry.box.shape.size()) {
      Refuse(path, "the offset of {} has {} dimensions, but its shape {}", Quote(entry.name),
             entry.box.offset.size(), entry.box.shape.size());
    }
  }
}

}  // namespace

std::vector<Entry> ReadHeader(const std::string& path, Metadata* metadata) {
  int64_t data = 0, size = 0;
  const json in = ParseJson(ReadJson(path, &data, &size), path);
  if (!in.is_object()) Refuse(path, "its header is not an object");
  std::vector<Entry> entries;
  for (const auto& [name, value] : in.items()) {
    if (name != "__metadata__") entries.push_back(ReadEntry(name, value, path));
  }
  if (in.contains("__metadata__")) {
    PlaceBoxes(in["__metadata__"], path, &entries);
    for (const auto& [key, value] : in["__metadata__"].items()) {
      if (!value.is_string())
        Refuse(path, "the entry {} of `__metadata__` is not text", Quote(key));
      metadata->emplace_back(key, value.get<std::string>());
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = 0;
  for (Entry& entry : entries) {
    if (entry.offset != end) {
      Refuse(path, "{} begins at byte {} of the data, but the one before ends at {}",
             Quote(entry.name), entry.offset, end);
    }
    end += entry.bytes;
    entry.offset += data;
  }
  if (data + end != size) {
    Refuse(path, "it has {} bytes, but its header describes {}", size, data + end);
  }
  return entries;
}

}  // namespace shardinit::safetensors
