#include "tensor/dtype.h"

#include <cmath>
#include <utility>

namespace shardinit {
namespace {

constexpr DTypeInfo kDTypes[] = {
#define SHARDINIT_DTYPE(name, bytes, exponent_bits, mantissa_bits) \
  {DType::name, #name, bytes, exponent_bits, mantissa_bits},
#include "tensor/dtype.def"
#undef SHARDINIT_DTYPE
};

}  // namespace

const DTypeInfo& InfoOf(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }

double LargestOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  const int exponent = (1 << (info.exponent_bits - 1)) - 1;
  return std::ldexp(2 - std::ldexp(1.0, -info.mantissa_bits), exponent);
}

std::span<const DTypeInfo> DTypes() { return kDTypes; }

std::optional<DType> FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::optional<DType> FindDTypeByOtherName(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kOthers[] = {
      {"float32", DType::f32}, {"float", DType::f32},     {"single", DType::f32},
      {"float64", DType::f64}, {"double", DType::f64},    {"bfloat16", DType::bf16},
      {"float16", DType::f16}, {"half", DType::f16},      {"fp32", DType::f32},
      {"fp64", DType::f64},    {"fp16", DType::f16},
  };
  for (const auto& [other, dtype] : kOthers) {
    if (other == name) return dtype;
  }
  return std::nullopt;
}

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names;
  for (const DTypeInfo& info : kDTypes) names.emplace_back(info.name);
  return names;
}

}  // namespace shardinit
