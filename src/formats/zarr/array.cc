// Reads arrays of zarr 2 that are not compressed, whoever wrote them, with all their chunks: each
// is a folder with `.zarray` and a file for each chunk.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/zarr/chunks.h"
#include "report/text.h"

namespace shardinit {
namespace zarr {
namespace {

using nlohmann::json;

constexpr char kDescription[] = "/.zarray";
constexpr size_t kDescriptionLimit = 1 << 20;

[[noreturn]] void RefuseArray(const std::string& folder, std::string_view what,
                              std::string_view hint = {}) {
  throw Error(ExitCode::kRefused,
              fmt::format("cannot read `{}` as a zarr array: {}", Escape(folder), what),
              std::string(hint));
}

// Reads extents that are small enough for sums of two, with a product that fits.
Shape ReadExtents(const json& in, const char* key, int64_t least, const std::string& folder) {
  const auto found = in.find(key);
  Shape shape;
  int64_t count = 1;
  bool fits = found != in.end() && found->is_array() && found->size() <= kMaxRank;
  for (size_t d = 0; fits && d < found->size(); ++d) {
    const json& extent = (*found)[d];
    fits = extent.is_number_unsigned() && extent.get<uint64_t>() >> 48 == 0 &&
           extent.get<int64_t>() >= least &&
           !__builtin_mul_overflow(count, std::max<int64_t>(1, extent.get<int64_t>()), &count) &&
           count >> 59 == 0;
    if (fits) shape.push_back(extent.get<int64_t>());
  }
  if (!fits)
    RefuseArray(
        folder,
        fmt::format(
            "its `{}` must be a list of sizes of at least {}, below 2^48 each and 2^59 together, "
            "not {}",
            key, least, Quote(in.value(key, json()).dump())));
  return shape;
}

Holding ReadArray(const std::string& folder, std::string file) {
  const std::string path = folder + kDescription;
  const json in = ParseJson(ReadInput(path, kDescriptionLimit), path);
  const auto value_of = [&](const char* key) {
    return in.is_object() ? in.value(key, json()) : json();
  };
  const auto require = [&](const char* key, const json& wanted, const char* in_text) {
    const json value = value_of(key);
    if (value == wanted) return;
    RefuseArray(folder,
                fmt::format("its `{}` is not {}, but {}", key, in_text, Quote(value.dump())));
  };
  require("zarr_format", 2, "2");
  for (const char* key : {"compressor", "filters"}) {
    if (const json value = value_of(key); !value.is_null()) {
      RefuseArray(
          folder,
          fmt::format("it has a `{}`, which shardinit does not read: {}", key, Quote(value.dump())),
          kOrbaxLine);
    }
  }
  require("order", "C", "C");
  const json separator = in.value("dimension_separator", json("."));
  if (separator != "." && separator != "/")
    RefuseArray(folder, "its `dimension_separator` is neither `.` nor `/`");
  if (!in.contains("dtype") || !in["dtype"].is_string())
    RefuseArray(folder, "its `dtype` is not text");
  Holding array{
      std::move(file), in["dtype"].get<std::string>(), ReadExtents(in, "shape", 0, folder), {}};
  const Shape chunk = ReadExtents(in, "chunks", 1, folder);
  if (chunk.size() != array.shape.size())
    RefuseArray(folder, fmt::format("its chunks, {}, do not have as many dimensions as its "
                                    "shape, {}",
                                    InShape(chunk), InShape(array.shape)));
  const DTypeInfo* const dtype = FindDType(&ForeignNames::zarr, array.dtype);
  // Chunks of a type that no spec can ask for, or of an empty array, are not read.
  if (dtype == nullptr || ElementCount(array.shape) == 0) return array;
  const int64_t bytes = ElementCount(chunk) * dtype->bytes;
  const auto add = [&](const std::string& name, Box box) {
    const int64_t size = InputSize(folder + "/" + name);
    if (size != bytes) {
      RefuseArray(folder, size < 0 ? fmt::format("its chunk `{}` is missing", name)
                                   : fmt::format("its chunk `{}` has {} bytes instead of {}", name,
                                                 size, bytes));
    }
    array.pieces.push_back({std::move(box), folder + "/" + name, 0});
  };
  ForEachChunk(array.shape, chunk, separator.get<std::string>(), add);
  return array;
}

// Refuses arrays in folders that are not arrays, as groups of zarr have them.
void RefuseNested(const std::string& folder) {
  WalkInput(folder, [&](const std::string& name, NameKind kind) {
    if (kind != NameKind::kFolder) return false;
    if (!InputExists(folder + "/" + name + kDescription)) return true;
    if (name.find('/') == name.npos) return false;
    throw Error(
        ExitCode::kRefused,
        fmt::format("`{}` has the array {} in a group, which is not read", folder, Quote(name)),
        std::string(kOrbaxLine));
  });
}

// Finds an array that is missing among those of the tree that Orbax describes.
void RequireTree(const std::string& folder, Contents* contents) {
  constexpr size_t kTreeLimit = 256 << 20;
  std::string text;
  const std::string path = folder + "/_METADATA";
  if (!ReadInputIfExists(path, kTreeLimit, &text)) return;
  const json in = ParseJson(text, path);
  const json tree = in.is_object() ? in.value("tree_metadata", json()) : json();
  if (!tree.is_object()) return;
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
    if (contents->lost.empty() &&
        !InputExists(fmt::format("{}/{}{}", folder, name, kDescription))) {
      contents->lost = fmt::format("_METADATA lists {}, which is not there", Quote(name));
    }
  }
}

std::optional<Contents> ReadFolder(const std::string& folder) {
  std::vector<std::string> names = NamesIn(folder);
  std::erase_if(names, [&](const std::string& name) {
    return !InputExists(folder + "/" + name + kDescription);
  });
  if (names.empty()) return std::nullopt;
  RefuseNested(folder);
  Contents contents;
  RequireTree(folder, &contents);
  // Beside the state of an optimizer, as in Flax's TrainState, the model is `params`.
  constexpr std::string_view kParams = "params.";
  const auto is_state = [](const std::string& name) { return name.starts_with("opt_state."); };
  const bool has_optimizer = std::any_of(names.begin(), names.end(), is_state);
  if (has_optimizer) contents.prefix = kParams;
  for (const std::string& name : names) {
    if (has_optimizer && (is_state(name) || name == "step")) {
      ++contents.others[is_state(name) ? "opt_state" : "step"];
      continue;
    }
    if (!name.starts_with(kParams)) contents.prefix = {};
    contents.tensors[name] =
        ReadArray(fmt::format("{}/{}", folder, name), Escape(name) + kDescription);
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
