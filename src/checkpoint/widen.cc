#include "checkpoint/widen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/relayout.h"
#include "tensor/convert.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr char kBlocksEnd[] = "_blocks", kScalesEnd[] = "_scales", kScaleInvEnd[] = "_scale_inv";
constexpr int64_t kMxNumbers = 32;  // numbers per scale
constexpr float kE2M1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};

constexpr char kLeaveOut[] = "leave out `--dtype` to copy it unchanged";

[[noreturn]] void ThrowUnknown(const std::string& path, const std::string& why) {
  throw Error(ExitCode::kUsage, fmt::format("`{}` cannot be widened: {}", path, why), kLeaveOut);
}

// Returns the quantization_config of a config.json; null if it has none.
nlohmann::json QuantizationOf(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, false);
  return json.is_object() ? json.value("quantization_config", nlohmann::json()) : nlohmann::json();
}

// Returns the size of a block from the config. Shapes do not determine it, because blocks at the
// edges may be cut.
std::pair<int64_t, int64_t> BlockOf(const std::string& config, const std::string& path) {
  const nlohmann::json quantization = QuantizationOf(config);
  if (!quantization.is_object() || !quantization.contains("weight_block_size")) {
    ThrowUnknown(
        path,
        "there is no config.json next to it with a weight_block_size under quantization_config");
  }
  const nlohmann::json& size = quantization["weight_block_size"];
  // JSON's own comparison treats a large 64-bit number as negative.
  const auto is_size = [](const nlohmann::json& number) {
    constexpr uint64_t kMost = 1 << 30;
    return number.is_number_unsigned() && number != 0 && number.get<uint64_t>() <= kMost;
  };
  if (!size.is_array() || size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) {
    ThrowUnknown(path, fmt::format("weight_block_size of config.json must be two sizes, but is {}",
                                   size.dump()));
  }
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

Widening BlocksOf(const Tensor& numbers, const Tensor& scales, const std::string& config,
                  DType dtype) {
  const bool is_known =
      scales.dtype() == DType::f32 || scales.dtype() == DType::bf16 || scales.dtype() == DType::f16;
  if (numbers.dtype() != DType::f8e4m3fn || numbers.shape().size() != 2 || !is_known) {
    ThrowUnknown(std::string(numbers.path()),
                 fmt::format("it is {} [{}] with scales of {}, not a matrix of f8e4m3fn with "
                             "scales of f32, bf16 or f16",
                             InfoOf(numbers.dtype()).name, fmt::join(numbers.shape(), ", "),
                             InfoOf(scales.dtype()).name));
  }
  const auto [rows, columns] = BlockOf(config, std::string(numbers.path()));
  const Shape grid = {CeilDiv(numbers.shape()[0], rows), CeilDiv(numbers.shape()[1], columns)};
  if (scales.shape() != grid) {
    ThrowUnknown(
        std::string(numbers.path()),
        fmt::format("`{}` is [{}], but blocks of {} x {} need [{}]", scales.path(),
                    fmt::join(scales.shape(), ", "), rows, columns, fmt::join(grid, ", ")));
  }
  Widening widening = {Scheme::kBlocks, numbers, scales, rows, columns, numbers};
  widening.made.Edit().dtype = dtype;
  return widening;
}

Widening Mxfp4Of(const Tensor& numbers, const Tensor& scales, const std::string& path,
                 DType dtype) {
  const Shape& shape = numbers.shape();
  Shape wanted = shape;
  if (!wanted.empty()) wanted.pop_back();
  if (numbers.dtype() != DType::u8 || scales.dtype() != DType::u8 || shape.size() != 4 ||
      shape[3] != kMxNumbers / 2 || scales.shape() != wanted) {
    ThrowUnknown(std::string(numbers.path()),
                 fmt::format("it is {} [{}] and `{}` {} [{}], not u8 [experts, rows, groups, 16] "
                             "and u8 [experts, rows, groups]",
                             InfoOf(numbers.dtype()).name, fmt::join(shape, ", "), scales.path(),
                             InfoOf(scales.dtype()).name, fmt::join(scales.shape(), ", ")));
  }
  Widening widening = {Scheme::kMxfp4, numbers, scales, 1, kMxNumbers, numbers};
  widening.made.set_path(path);
  widening.made.Edit().dtype = dtype;
  widening.made.Edit().shape = {shape[0], shape[2] * kMxNumbers, shape[1]};
  widening.made.Edit().partition = PartitionSpec(3);
  widening.made.Edit().distribution = ValuesOfSource(path);
  return widening;
}

void Put(const Widening& widening, float number, uint8_t* out) {
  if (Convert(&number, DType::f32, widening.made.dtype(), out)) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` has the value {}, which {} cannot hold", widening.made.path(),
                          number, InfoOf(widening.made.dtype()).name));
}

// Computes elements of one row of a matrix.
void WidenRow(const Widening& widening, const BoxElements& numbers, const BoxElements& scales,
              int64_t first, int64_t count, uint8_t* out) {
  const int64_t width = widening.made.shape()[1], row = first / width, column = first % width;
  const int64_t begin = column / widening.columns, end = (column + count - 1) / widening.columns;
  const DTypeInfo& type = InfoOf(widening.scales.dtype());
  std::vector<float> of_blocks(static_cast<size_t>(end - begin + 1));
  std::vector<uint8_t> stored(of_blocks.size() * static_cast<size_t>(type.bytes));
  scales(row / widening.rows * widening.scales.shape()[1] + begin, end - begin + 1, stored.data());
  for (size_t i = 0; i < of_blocks.size(); ++i) {
    // f32 holds every value of the types of scales.
    of_blocks[i] =
        static_cast<float>(Decode(&stored[i * static_cast<size_t>(type.bytes)], type.dtype));
  }
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  numbers(first, count, codes.data());
  for (int64_t i = 0; i < count; ++i) {
    const float scale = of_blocks[static_cast<size_t>((column + i) / widening.columns - begin)];
    const float code = DecodeF8E4M3Fn(codes[static_cast<size_t>(i)]);
    if (std::isinf(code * scale) && std::isfinite(scale)) {
      throw Error(
          ExitCode::kUsage,
          fmt::format("`{}` has the value {} with the scale {}, whose product f32 cannot hold",
                      widening.made.path(), code, scale));
    }
    Put(widening, code * scale, out);
    out += InfoOf(widening.made.dtype()).bytes;
  }
}

// Computes adjacent numbers of the result, which is transposed: they come from several rows.
// `first` and `count` refer to the numbers of an expert.
void WidenTile(const Widening& widening, const BoxElements& numbers, const BoxElements& scales,
               int64_t expert, int64_t first, int64_t count, uint8_t* out) {
  const int64_t rows = widening.made.shape()[2], depth = widening.made.shape()[1];
  const int64_t low = first / rows, high = (first + count - 1) / rows;
  const int64_t byte = low / 2, group = low / kMxNumbers;
  std::vector<uint8_t> codes(static_cast<size_t>(high / 2 - byte + 1));
  std::vector<uint8_t> exponents(static_cast<size_t>(high / kMxNumbers - group + 1));
  const int64_t bytes = InfoOf(widening.made.dtype()).bytes;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = std::max(low, CeilDiv(first - row, rows));
    const int64_t end = std::min(high, (first + count - 1 - row) / rows);
    if (first + count - 1 < row || begin > end) continue;
    const int64_t at = expert * rows + row;
    numbers(at * (depth / 2) + byte, std::ssize(codes), codes.data());
    scales(at * (depth / kMxNumbers) + group, std::ssize(exponents), exponents.data());
    for (int64_t d = begin; d <= end; ++d) {
      const uint8_t pair = codes[static_cast<size_t>(d / 2 - byte)];
      const int code = d % 2 == 0 ? pair & 15 : pair >> 4;
      const int exponent = exponents[static_cast<size_t>(d / kMxNumbers - group)];
      const float sign = (code & 8) != 0 ? -1.0F : 1.0F;
      if (exponent == 255) {
        throw Error(
            ExitCode::kUsage,
            fmt::format("`{}` has the scale 255, which is not a number: the largest is 254, 2^127",
                        widening.scales.path()));
      }
      const float code_value = sign * kE2M1[code & 7];
      const float number = std::ldexp(code_value, exponent - 127);
      if (std::isinf(number)) {
        throw Error(
            ExitCode::kUsage,
            fmt::format("`{}` has the value {} with the scale 2^{}, whose product f32 cannot hold",
                        widening.made.path(), code_value, exponent - 127));
      }
      Put(widening, number, out + (d * rows + row - first) * bytes);
    }
  }
}

using TensorsByPath = std::map<std::string, const Tensor*>;

// Throws Error (kUsage) if the config names a quantization that is not read.
void RequireKnownMethod(const std::string& config) {
  const auto json = nlohmann::json::parse(config, nullptr, false);
  for (const char* key : {"quantization_config", "compression_config", "quantization"}) {
    if (!json.is_object() || !json.contains(key) || json[key].is_null()) continue;
    const nlohmann::json& of = json[key];
    const nlohmann::json method =
        of.is_object() ? of.value("quant_method", nlohmann::json()) : nlohmann::json();
    const bool is_known = key == std::string_view("quantization_config") &&
                          (method.is_null() || method == "fp8" || method == "mxfp4");
    if (is_known) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("the model cannot be widened: {} of config.json is {}, which shardinit does "
                    "not support",
                    key,
                    method.is_null() ? std::string("that it is quantized")
                                     : fmt::format("quant_method is {}", Quote(method.dump()))),
        kLeaveOut);
  }
}

// Throws Error (kUsage) if a tensor's name shows that it holds packed numbers, or if an integer
// tensor has scales next to it.
void RequireUnpacked(const Tensor& tensor, const TensorsByPath& there) {
  constexpr std::string_view kPacked[] = {"weight_packed", "qweight",      "qzeros",
                                          "scale_packed",  "weight_g_idx", "g_idx",
                                          "weight_shape",  "bitmask",      "weight_zero_point"};
  constexpr std::string_view kScales[] = {"scale",   "scales", "weight_scale",    "weight_scales",
                                          "qscales", "absmax", "weight_scale_inv"};
  const std::string path(tensor.path());
  const size_t dot = path.rfind('.') + 1;
  const std::string_view last = std::string_view(path).substr(dot);
  if (std::ranges::find(kPacked, last) != std::end(kPacked)) {
    ThrowUnknown(path, "it is a part of packed numbers, which shardinit does not read");
  }
  const DTypeInfo& info = InfoOf(tensor.dtype());
  if (info.is_float() || info.kind == DTypeKind::kBool || tensor.shape().size() < 2) return;
  for (const std::string_view scale : kScales) {
    const auto found = there.find(path.substr(0, dot) + std::string(scale));
    if (found == there.end() || found->second == &tensor) continue;
    ThrowUnknown(path, fmt::format("it is not known how `{}` scales it", found->first));
  }
}

// Throws Error (kUsage) if a tensor that is not widened seems to have scales: without them, its
// numbers would lose their meaning.
void RequireUnscaled(const Tensor& tensor, const TensorsByPath& there) {
  const std::string path(tensor.path());
  if (InfoOf(tensor.dtype()).bytes > 1 || InfoOf(tensor.dtype()).kind == DTypeKind::kBool) return;
  const std::string around = path.substr(0, path.rfind('.') + 1);
  for (auto other = there.lower_bound(around.empty() ? path : around);
       other != there.end() && other->first.starts_with(around.empty() ? path : around); ++other) {
    const std::string_view rest = std::string_view(other->first).substr(around.size());
    if (other->second == &tensor ||
        (rest.find("scale") == rest.npos && rest.find("absmax") == rest.npos && rest != "SCB")) {
      continue;
    }
    ThrowUnknown(path, fmt::format("it is not known how `{}` scales it", other->first));
  }
}

// Throws Error (kUsage) if a tensor that is not widened has scales, or should have them.
void RequireNoneLeft(const std::vector<Widening>& widenings, const TensorsByPath& there,
                     const std::string& config) {
  const bool is_quantized = !QuantizationOf(config).is_null();
  std::set<std::string> used;
  for (const Widening& widening : widenings) {
    used.insert({std::string(widening.numbers.path()), std::string(widening.scales.path())});
  }
  for (const auto& [path, tensor] : there) {
    if (used.contains(path)) continue;
    RequireUnscaled(*tensor, there);
    if (!is_quantized && widenings.empty()) continue;
    if (path.ends_with(kScaleInvEnd)) {
      ThrowUnknown(path, fmt::format("it scales `{}`, which is missing",
                                     path.substr(0, path.size() - sizeof kScaleInvEnd + 1)));
    }
    const DTypeInfo& info = InfoOf(tensor->dtype());
    if (info.bytes > 1 || !(info.is_float() || path.ends_with(kBlocksEnd))) continue;
    ThrowUnknown(path, "it has no scales, but other tensors or config.json have them");
  }
}

// Returns the tensors that are not dropped. Throws Error as RequireReadable() does.
TensorsByPath RequireNoPacked(const Plan& plan, const IsDropped& is_dropped) {
  RequireKnownMethod(plan.graph.config);
  TensorsByPath there;
  for (const Tensor& tensor : plan.graph.tensors) {
    if (!is_dropped(std::string(tensor.path()))) there.emplace(std::string(tensor.path()), &tensor);
  }
  for (const auto& [path, tensor] : there) RequireUnpacked(*tensor, there);
  return there;
}

}  // namespace

void RequireReadable(const Plan& plan, const IsDropped& is_dropped) {
  RequireNoPacked(plan, is_dropped);
}

std::vector<Widening> FindWidenings(const Plan& plan, DType dtype, const IsDropped& is_dropped) {
  const TensorsByPath there = RequireNoPacked(plan, is_dropped);
  const auto find = [&](const std::string& path) {
    const auto found = there.find(path);
    return found == there.end() ? nullptr : found->second;
  };
  std::vector<Widening> widenings;
  for (const auto& [path, tensor] : there) {
    if (path.ends_with(kBlocksEnd) && tensor->dtype() == DType::u8) {
      const std::string made = path.substr(0, path.size() - sizeof kBlocksEnd + 1);
      const Tensor* const scales = find(made + kScalesEnd);
      if (scales == nullptr) continue;
      if (there.contains(made)) ThrowUnknown(path, fmt::format("`{}` also exists", made));
      widenings.push_back(Mxfp4Of(*tensor, *scales, made, dtype));
      continue;
    }
    const DTypeInfo& info = InfoOf(tensor->dtype());
    if (!info.is_float() || info.bytes > 1) continue;
    if (const Tensor* const scales = find(path + kScaleInvEnd)) {
      widenings.push_back(BlocksOf(*tensor, *scales, plan.graph.config, dtype));
    }
  }
  RequireNoneLeft(widenings, there, plan.graph.config);
  return widenings;
}

BoxElements Widen(const Widening& widening, BoxElements numbers, BoxElements scales) {
  return [widening, numbers = std::move(numbers), scales = std::move(scales)](
             int64_t first, int64_t count, void* out) {
    const Shape& shape = widening.made.shape();
    const bool is_matrix = widening.scheme == Scheme::kBlocks;
    const int64_t part = is_matrix ? shape[1] : shape[1] * shape[2];
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const int64_t now = std::min(count, part - first % part);
      if (is_matrix) {
        WidenRow(widening, numbers, scales, first, now, at);
      } else {
        WidenTile(widening, numbers, scales, first / part, first % part, now, at);
      }
      first += now, count -= now, at += now * InfoOf(widening.made.dtype()).bytes;
    }
  };
}

std::string WithoutQuantization(const std::string& config) {
  auto json = nlohmann::json::parse(config, nullptr, false);
  if (!json.is_object()) return config;
  json.erase("quantization_config");
  return json.dump();
}

}  // namespace shardinit
