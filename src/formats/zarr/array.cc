#include "formats/zarr/array.h"

#include <dirent.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace shardinit::zarr {
namespace {

using nlohmann::json;

constexpr char kDescription[] = "/.zarray";
constexpr size_t kDescriptionLimit = 1 << 20;

[[noreturn]] void RefuseArray(const std::string& folder, std::string_view what) {
  throw Error(ExitCode::kRefused,
              fmt::format("`{}` is no zarr array that is read here: {}", Escape(folder), what));
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
  if (!fits) RefuseArray(folder, fmt::format("its `{}`", key));
  return shape;
}

}  // namespace

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "<f4";
    case DType::f64:
      return "<f8";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "<f2";
    case DType::f8e4m3fn:
      return "float8_e4m3fn";
    case DType::f8e5m2:
      return "float8_e5m2";
    case DType::i8:
      return "|i1";
    case DType::i16:
      return "<i2";
    case DType::i32:
      return "<i4";
    case DType::i64:
      return "<i8";
    case DType::u8:
      return "|u1";
    case DType::u16:
      return "<u2";
    case DType::u32:
      return "<u4";
    case DType::u64:
      return "<u8";
    case DType::boolean:
      return "|b1";
  }
  Check(false, "a dtype that zarr has no name for");
  return {};
}

namespace {

// Returns the names of the folders in `folder` that are arrays.
std::vector<std::string> ArraysIn(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) throw SystemError("read the folder", folder);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != ".." && Exists(folder + "/" + name + kDescription)) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Holding ReadArray(const std::string& folder, std::string file) {
  const std::string path = folder + kDescription;
  const json in = ParseJson(ReadFile(path, kDescriptionLimit), path);
  if (!in.is_object() || in.value("zarr_format", json()) != 2)
    RefuseArray(folder, "its `zarr_format`");
  for (const char* key : {"compressor", "filters"}) {
    if (!in.value(key, json()).is_null()) RefuseArray(folder, fmt::format("it has a `{}`", key));
  }
  if (in.value("order", json()) != "C") RefuseArray(folder, "its `order` is not C");
  const json separator = in.value("dimension_separator", json("."));
  if (separator != "." && separator != "/") RefuseArray(folder, "its `dimension_separator`");
  if (!in.contains("dtype") || !in["dtype"].is_string()) RefuseArray(folder, "its `dtype`");
  Holding array{
      std::move(file), in["dtype"].get<std::string>(), ReadExtents(in, "shape", 0, folder), {}};
  const Shape chunk = ReadExtents(in, "chunks", 1, folder);
  if (chunk.size() != array.shape.size())
    RefuseArray(folder, "its chunks have another rank than its shape");
  const auto dtype = std::find_if(DTypes().begin(), DTypes().end(), [&](const DTypeInfo& info) {
    return NameOf(info.dtype) == array.dtype;
  });
  // Chunks of a type that no spec can ask for, or of an empty array, are not read.
  if (dtype == DTypes().end() || ElementCount(array.shape) == 0) return array;
  const int64_t bytes = ElementCount(chunk) * dtype->bytes;
  for (Shape place(chunk.size(), 0);;) {
    Box box{Shape(chunk.size()), chunk};
    for (size_t d = 0; d < chunk.size(); ++d) box.offset[d] = place[d] * chunk[d];
    std::string file =
        chunk.empty() ? "0" : fmt::format("{}", fmt::join(place, separator.get<std::string>()));
    const int64_t size = FileSize(folder + "/" + file);
    if (size != bytes) {
      RefuseArray(folder, size < 0 ? fmt::format("its chunk `{}` is missing", file)
                                   : fmt::format("its chunk `{}` has {} bytes instead of {}", file,
                                                 size, bytes));
    }
    array.pieces.push_back({std::move(box), folder + "/" + file, 0});
    size_t d = chunk.size();
    while (d > 0 && ++place[d - 1] * chunk[d - 1] >= array.shape[d - 1]) place[--d] = 0;
    if (d == 0) return array;
  }
}

std::optional<Contents> ReadFolder(const std::string& folder) {
  const std::vector<std::string> names = ArraysIn(folder);
  if (names.empty()) return std::nullopt;
  Contents contents;
  // Beside the state of an optimizer, as in Flax's TrainState, the model is `params`.
  constexpr std::string_view kParams = "params.";
  const auto is_state = [](const std::string& name) { return name.starts_with("opt_state."); };
  const bool has_optimizer = std::any_of(names.begin(), names.end(), is_state);
  if (has_optimizer) contents.prefix = kParams;
  for (const std::string& name : names) {
    if (has_optimizer && (is_state(name) || name == "step")) {
      ++contents.optimizer_entries;
      continue;
    }
    if (!name.starts_with(kParams)) contents.prefix = {};
    contents.tensors[name] = ReadArray(folder + "/" + name, Escape(name) + kDescription);
  }
  return contents;
}

}  // namespace

extern const FormatReader kReader = {
    .what = "zarr arrays",
    .name_of = NameOf,
    .read = ReadFolder,
};

}  // namespace shardinit::zarr
