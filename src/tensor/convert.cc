#include "tensor/convert.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "tensor/encode.h"
#include "tensor/numbers.h"

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
  if (NumberCount(dtype) > 1) return fmt::format("of the type {}", InfoOf(dtype).name);
  if (dtype != DType::i64 && dtype != DType::u64) return fmt::to_string(Decode(in, dtype));
  std::memcpy(&bits, in, sizeof bits);
  return dtype == DType::u64 ? fmt::to_string(bits) : fmt::to_string(static_cast<int64_t>(bits));
}

namespace {

// A whole number from -2^63 to 2^64 - 1.
struct Whole {
  uint64_t bits;
  bool is_negative;
};

// Reads a whole number. Returns nothing if the number is not whole or does not fit 64 bits.
std::optional<Whole> WholeAt(const void* in, DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.has_fractions()) {
    const double value = Decode(in, dtype);
    if (!(value >= -0x1p63 && value < 0x1p64) || std::trunc(value) != value) return {};
    const bool is_negative = value < 0;
    return Whole{is_negative ? static_cast<uint64_t>(static_cast<int64_t>(value))
                             : static_cast<uint64_t>(value),
                 is_negative};
  }
  uint64_t bits = 0;
  std::memcpy(&bits, in, static_cast<size_t>(info.bytes));
  if (info.kind != DTypeKind::kSigned) return Whole{bits, false};
  const int above = 64 - 8 * info.bytes;  // the bits before the sign
  const int64_t value = static_cast<int64_t>(bits << above) >> above;
  return Whole{static_cast<uint64_t>(value), value < 0};
}

bool IsWithin(const Whole& number, DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.kind == DTypeKind::kBool) return !number.is_negative && number.bits <= 1;
  const bool is_signed = info.kind == DTypeKind::kSigned;
  const int bits = 8 * info.bytes - is_signed;  // bits of the number without its sign
  // A negative number has as many of these bits as its absolute value minus 1.
  const uint64_t size = number.is_negative ? ~number.bits : number.bits;
  return (is_signed || !number.is_negative) && (bits == 64 || size >> bits == 0);
}

}  // namespace

bool Convert(const void* in, DType from, DType to, void* out) {
  if (InfoOf(to).kind == DTypeKind::kCarried) {
    if (from != to) return false;
    std::memcpy(out, in, static_cast<size_t>(InfoOf(to).bytes));
    return true;
  }
  if (NumberCount(from) > 1) return false;
  if (!InfoOf(to).is_float()) {
    const std::optional<Whole> whole = WholeAt(in, from);
    if (!whole || !IsWithin(*whole, to)) return false;
    std::memcpy(out, &whole->bits, static_cast<size_t>(InfoOf(to).bytes));
    return true;
  }
  const double value = Decode(in, from);
  if (!IsDecodedExactly(in, from, value)) return false;
  if (std::isinf(value) && InfoOf(to).kind != DTypeKind::kFloat) return false;
  if (std::isfinite(value) && to != DType::f64 &&
      !(std::fabs(static_cast<float>(value)) <= LargestRounded(to))) {
    return false;
  }
  EncodeNumber(value, to, out);
  return InfoOf(from).has_fractions() || Decode(out, to) == value;
}

}  // namespace shardinit
