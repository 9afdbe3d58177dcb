#include "tensor/convert.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/encode.h"

namespace shardinit {

bool IsDecodedExactly(const void* in, DType dtype, double value) {
  uint64_t bits = 0;
  if (dtype != DType::i64 && dtype != DType::u64) return true;
  std::memcpy(&bits, in, sizeof bits);
  if (dtype == DType::u64) return value < 0x1p64 && static_cast<uint64_t>(value) == bits;
  return value < 0x1p63 && static_cast<int64_t>(value) == static_cast<int64_t>(bits);
}

std::string NumberInText(const void* in, DType dtype) {
  uint64_t bits = 0;
  if (dtype != DType::i64 && dtype != DType::u64) return fmt::to_string(Decode(in, dtype));
  std::memcpy(&bits, in, sizeof bits);
  return dtype == DType::u64 ? fmt::to_string(bits) : fmt::to_string(static_cast<int64_t>(bits));
}

bool Convert(const void* in, DType from, DType to, void* out) {
  const double value = Decode(in, from);
  if (!InfoOf(to).is_float()) {
    if (!Holds(to, value) || !IsDecodedExactly(in, from, value)) return false;
    EncodeNumber(value, to, out);
    return true;
  }
  if (!IsDecodedExactly(in, from, value)) return false;
  if (std::isinf(value) && InfoOf(to).kind != DTypeKind::kFloat) return false;
  if (std::isfinite(value) && to != DType::f64 &&
      !(std::fabs(static_cast<float>(value)) <= LargestRounded(to))) {
    return false;
  }
  EncodeNumber(value, to, out);
  return InfoOf(from).is_float() || Decode(out, to) == value;
}

}  // namespace shardinit
