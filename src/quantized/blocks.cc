// Finds tensors of DeepSeek, gpt-oss and ModelOpt.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/checked_math.h"
#include "quantized/search.h"

namespace shardinit {
namespace {

// ModelOpt has no -0.
std::vector<float> ModelOptValues() {
  std::vector<float> values = ValuesOf(DType::f4e2m1fn);
  values[8] = 0;
  return values;
}

void TakeConfiguredBlocks(Search& search, Widening* widening, const Tensor& scales) {
  const Tensor& numbers = widening->numbers();
  const auto [rows, columns] = search.config().Block(std::string(numbers.path()));
  const Shape grid = {CeilDiv(numbers.shape()[0], rows), CeilDiv(numbers.shape()[1], columns)};
  if (scales.shape() != grid) {
    ThrowUnreadable(numbers, fmt::format("`{}` is [{}], but blocks of {} x {} need [{}]",
                                         scales.path(), fmt::join(scales.shape(), ", "), rows,
                                         columns, fmt::join(grid, ", ")));
  }
  TakeScales(widening, scales, rows, columns);
  // Only Transformers has this rule, for the type and the names of its own files.
  widening->unknown = "Transformers writes blocks of fp8 only with scales of f32 or f8e8m0";
  const bool is_power = scales.dtype() == DType::f8e8m0;
  if (search.config().method() != "fp8" || (!is_power && scales.dtype() != DType::f32)) return;
  widening->fresh = is_power || search.config().Text("scale_fmt") == "ue8m0"
                        ? Widening::Fresh::kPowerOfTwo
                        : Widening::Fresh::kReciprocal;
}

void TakeBlocks(Search& search, const Tensor& numbers, const Tensor& scales,
                const std::string& around) {
  const bool is_known = IsFloatScale(scales.dtype()) || scales.dtype() == DType::u8 ||
                        scales.dtype() == DType::f8e8m0;
  const bool is_packed = numbers.dtype() == DType::f4e2m1fn ||
                         (numbers.dtype() == DType::i8 && scales.dtype() == DType::f8e8m0);
  if ((numbers.dtype() != DType::f8e4m3fn && !is_packed) || numbers.shape().size() != 2 ||
      !is_known) {
    ThrowUnreadable(numbers,
                    fmt::format("it is {} [{}] with scales of {}, not a matrix of f8e4m3fn with "
                                "scales of f32, bf16, f16, f8e8m0 or u8",
                                InfoOf(numbers.dtype()).name, fmt::join(numbers.shape(), ", "),
                                InfoOf(scales.dtype()).name));
  }
  const int64_t rows = numbers.shape()[0], stored = numbers.shape()[1];
  Widening widening =
      is_packed
          ? search.Begin(
                numbers,
                {.packing = Packing::kAlongRows, .bits = 4, .rows = rows, .columns = 2 * stored},
                ValuesOf(DType::f4e2m1fn))
          : search.Begin(numbers, {.rows = rows, .columns = stored}, ValuesOf(DType::f8e4m3fn));
  widening.is_exact = true;
  if (scales.dtype() == DType::u8) widening.scale = Widening::Scale::kExponent;
  if (is_packed) {
    search.TakeGroups(&widening, scales, kMxNumbers);
    widening.unknown = "Transformers reads blocks of 4 bits, but does not write them";
    Make(&widening, std::string(numbers.path()), {rows, 2 * stored});
  } else if (search.config().HasBlock() && scales.shape().size() == 2) {
    TakeConfiguredBlocks(search, &widening, scales);
  } else if (scales.elements() == 1) {
    TakeScales(&widening, scales, rows, stored);
  } else if (scales.shape() == Shape{rows, 1}) {
    TakeScales(&widening, scales, 1, stored);
  } else {
    TakeConfiguredBlocks(search, &widening, scales);
  }
  search.LeaveActivations(&widening, around);
  search.Leave(&widening, around + ".activation_scale");
  search.Add(std::move(widening));
}

}  // namespace

// DeepSeek: blocks of matrices, whose scales may have several names and types.
bool FindBlocks(Search& search, const Tensor& numbers, const std::string& around) {
  const std::string path(numbers.path());
  std::vector<std::string> names = {path + "_scale_inv"};
  if (around != path && search.config().is_there()) {
    names.insert(names.end(), {around + ".scale", around + ".qscale_weight"});
  }
  for (const std::string& name : names) {
    const Tensor* const scales = search.TensorAt(name);
    if (scales == nullptr || numbers.dtype() == DType::u8) continue;
    TakeBlocks(search, numbers, *scales, around);
    return true;
  }
  return false;
}

// gpt-oss: 32 numbers of 4 bits for each scale, a power of two. The made tensor has the last two
// dimensions swapped.
bool FindMxfp4Blocks(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor* const scales = search.TensorAt(around + "_scales");
  if (scales == nullptr) return false;
  const Shape& shape = numbers.shape();
  const Shape wanted(shape.begin(), shape.empty() ? shape.end() : shape.end() - 1);
  if (scales->dtype() != DType::u8 || shape.size() != 4 || shape[3] != kMxNumbers / 2 ||
      scales->shape() != wanted) {
    ThrowUnreadable(
        numbers, fmt::format("it is {} [{}] and `{}` {} [{}], not u8 [experts, rows, groups, 16] "
                             "and u8 [experts, rows, groups]",
                             InfoOf(numbers.dtype()).name, fmt::join(shape, ", "), scales->path(),
                             InfoOf(scales->dtype()).name, fmt::join(scales->shape(), ", ")));
  }
  const int64_t columns = shape[2] * kMxNumbers;
  Widening widening = search.Begin(numbers,
                                   {.packing = Packing::kAlongRows,
                                    .bits = 4,
                                    .rows = shape[1],
                                    .columns = columns,
                                    .stored_columns = columns / 2},
                                   ValuesOf(DType::f4e2m1fn));
  TakeScales(&widening, *scales, 1, kMxNumbers);
  widening.scale = Widening::Scale::kExponent;
  widening.is_exact = true;
  widening.is_transposed = true;
  widening.unknown = "Transformers quantizes it with a kernel of the Hub";
  Make(&widening, around, {shape[0], columns, shape[1]});
  search.Add(std::move(widening));
  return true;
}

// ModelOpt's NVFP4: a scale of f32 for all scales.
bool FindModelOpt(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor* const global = search.TensorAt(around + ".weight_scale_2");
  if (global == nullptr) return false;
  const Tensor& scales = search.Need(numbers, around + ".weight_scale");
  if (numbers.shape().size() < 2) ThrowUnreadable(numbers, "it is not a matrix");
  RequireGlobal(numbers, scales, *global, {});
  const Shape& stored = numbers.shape();
  Widening widening = search.Begin(numbers,
                                   {.packing = Packing::kAlongRows,
                                    .bits = 4,
                                    .rows = stored[stored.size() - 2],
                                    .columns = 2 * stored.back()},
                                   ModelOptValues());
  widening.parts[Widening::kGlobal] = *global;
  widening.scale = Widening::Scale::kTimesGlobal;
  const std::string algorithm = search.config().Text("quant_algo");
  if (algorithm == "nvfp4" || algorithm == "w4a16_nvfp4") {
    widening.fresh = Widening::Fresh::kNvfp4;
  } else {
    widening.unknown = "quant_algo of config.json is not NVFP4, whose rule is known";
  }
  search.TakeGroups(&widening, scales, kNvNumbers);
  Make(&widening, std::string(numbers.path()),
       WithMatrix(stored, widening.codes.rows, widening.codes.columns));
  search.LeaveActivations(&widening, around);
  search.Add(std::move(widening));
  return true;
}

}  // namespace shardinit
