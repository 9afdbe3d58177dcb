#include "tensor/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/table.h"

namespace shardinit {
namespace {

// Returns the exponent of the largest finite number.
int GreatestExponent(const DTypeInfo& info) {
  const int bias = (1 << (info.exponent_bits - 1)) - 1;
  return info.kind == DTypeKind::kFiniteFloat ? bias + 1 : bias;
}

}  // namespace

std::vector<int64_t> InNumbers(std::vector<int64_t> place, DType dtype) {
  if (!place.empty()) place.back() *= InfoOf(dtype).numbers;
  return place;
}

std::optional<std::vector<int64_t>> InElements(std::vector<int64_t> place, DType dtype) {
  const int64_t numbers = InfoOf(dtype).numbers;
  if (numbers == 1) return place;
  if (place.empty() || place.back() % numbers != 0) return std::nullopt;
  place.back() /= numbers;
  return place;
}

double LargestOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  switch (info.kind) {
    case DTypeKind::kFloat:
    case DTypeKind::kFiniteFloat: {
      const int numbers_after =
          info.kind == DTypeKind::kFiniteFloat ? 2 : 1;  // units from the largest number to 2^(e +
                                                         // 1)
      return std::ldexp(2 - std::ldexp(numbers_after, -info.mantissa_bits), GreatestExponent(info));
    }
    case DTypeKind::kSigned:
      return static_cast<double>((int64_t{1} << std::min(8 * info.bytes - 1, 53)) - 1);
    case DTypeKind::kUnsigned:
      return static_cast<double>((int64_t{1} << std::min(8 * info.bytes, 53)) - 1);
    case DTypeKind::kBool:
      return 1;
    case DTypeKind::kCarried:
      return 0;
  }
  return 0;
}

double LowestOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.is_float()) return -LargestOf(dtype);
  if (info.kind != DTypeKind::kSigned) return 0;
  return info.bytes == 8 ? -LargestOf(dtype) : -LargestOf(dtype) - 1;
}

float LargestRounded(DType dtype) {
  if (dtype == DType::f32) return std::numeric_limits<float>::max();
  // Half a unit above the largest number is a tie, which rounds to the even number: infinity, or
  // the largest number if the type has no infinities.
  const DTypeInfo& info = InfoOf(dtype);
  const double unit = std::ldexp(1, GreatestExponent(info) - info.mantissa_bits);
  const auto tie = static_cast<float>(LargestOf(dtype) + unit / 2);
  return info.kind == DTypeKind::kFiniteFloat ? tie : std::nextafter(tie, 0.0f);
}

bool Holds(DType dtype, double value) {
  if (!InfoOf(dtype).is_float()) {
    return value >= LowestOf(dtype) && value <= LargestOf(dtype) && std::trunc(value) == value;
  }
  if (dtype == DType::f64) return std::isfinite(value);
  return std::fabs(static_cast<float>(value)) <= LargestRounded(dtype);
}

std::string DescribeRange(DType dtype) {
  if (dtype == DType::boolean) return "0 and 1";
  return fmt::format("whole numbers from {} to {}", LowestOf(dtype), LargestOf(dtype));
}

std::optional<DType> FindDType(std::string_view name) {
  const DTypeInfo* const info = FindNamed(kDTypes, name);
  return info != nullptr ? std::optional(info->dtype) : std::nullopt;
}

std::optional<DType> FindDTypeOfSpecs(std::string_view name) {
  const std::optional<DType> dtype = FindDType(name);
  return dtype && InfoOf(*dtype).kind != DTypeKind::kCarried ? dtype : std::nullopt;
}

std::optional<DType> FindDTypeByOtherName(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kOthers[] = {
      {"float32", DType::f32},       {"float", DType::f32},
      {"single", DType::f32},        {"float64", DType::f64},
      {"double", DType::f64},        {"bfloat16", DType::bf16},
      {"float16", DType::f16},       {"half", DType::f16},
      {"fp32", DType::f32},          {"fp64", DType::f64},
      {"fp16", DType::f16},          {"float8_e4m3fn", DType::f8e4m3fn},
      {"fp8", DType::f8e4m3fn},      {"float8", DType::f8e4m3fn},
      {"e4m3", DType::f8e4m3fn},     {"f8e4m3", DType::f8e4m3fn},
      {"fp8_e4m3", DType::f8e4m3fn}, {"float8_e5m2", DType::f8e5m2},
      {"e5m2", DType::f8e5m2},       {"fp8_e5m2", DType::f8e5m2},
      {"int8", DType::i8},           {"char", DType::i8},
      {"int16", DType::i16},         {"short", DType::i16},
      {"int32", DType::i32},         {"int", DType::i32},
      {"int64", DType::i64},         {"long", DType::i64},
      {"uint8", DType::u8},          {"byte", DType::u8},
      {"uint16", DType::u16},        {"uint32", DType::u32},
      {"uint64", DType::u64},        {"boolean", DType::boolean},
      {"bool_", DType::boolean},
  };
  // Removes `torch.`, `np.` or `jax.numpy.`.
  if (const size_t dot = name.rfind('.'); dot != name.npos) {
    name.remove_prefix(dot + 1);
    if (const auto dtype = FindDTypeOfSpecs(name)) return dtype;
  }
  for (const auto& [other, dtype] : kOthers) {
    if (other == name) return dtype;
  }
  return std::nullopt;
}

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names = NamesOf(kDTypes);
  std::erase_if(names, [](const std::string& name) { return !FindDTypeOfSpecs(name); });
  return names;
}

}  // namespace shardinit
