#include "tensor/dtype.h"

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

std::span<const DTypeInfo> DTypes() { return kDTypes; }

std::optional<DType> FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names;
  for (const DTypeInfo& info : kDTypes) names.emplace_back(info.name);
  return names;
}

}  // namespace shardinit
