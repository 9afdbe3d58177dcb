#include "tensor/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tensor/encode-inl.h"

namespace shardinit {
namespace {

// A number has the same bytes in memory as in a file (encode.h explains on which machines).
template <typename T>
void Store(T bits, void* out) {
  std::memcpy(out, &bits, sizeof bits);
}

template <typename T>
T Load(const void* in) {
  T bits;
  std::memcpy(&bits, in, sizeof bits);
  return bits;
}

template <DType dtype>
float DecodeSmall(uint32_t bits) {
  using T = SmallFloat<dtype>;
  const uint32_t sign_bit = 1u << (8 * T::kInfo.bytes - 1);
  const uint32_t sign = (bits & sign_bit) == 0 ? 0 : 0x80000000;
  const uint32_t magnitude = bits & (sign_bit - 1);
  uint32_t decoded;
  if (magnitude >= T::kFirstNotFinite) {
    decoded = magnitude == T::kFirstNotFinite && T::kHasInfinity
                  ? 0x7F800000
                  : 0x7F800000 | magnitude << T::kDropped;
  } else if (magnitude >= 1u << T::kInfo.mantissa_bits) {
    decoded = (magnitude << T::kDropped) + T::kRebias;
  } else {
    constexpr float kSmallest = 2.0f / (1 << T::kBias) / (1 << T::kInfo.mantissa_bits);
    decoded = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * kSmallest);
  }
  return std::bit_cast<float>(sign | decoded);
}

// Decodes a float of at most 8 bits. All are finite in OCP's types of 4 and 6 bits. In the others,
// only NaN is not: without a sign in OCP's f8e8m0, and instead of -0 in types ending in `fnuz`,
// whose exponents have a bias of one more.
double DecodeCarried(uint8_t bits, const DTypeInfo& info) {
  const bool is_fnuz = info.numbers == 1 && info.mantissa_bits > 0;
  const int bias = (1 << (info.exponent_bits - 1)) - (is_fnuz ? 0 : 1);
  const int ones = 1 << info.mantissa_bits, sign = ones << info.exponent_bits;
  if (info.mantissa_bits == 0) {
    return bits == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1, bits - bias);
  }
  if (is_fnuz && bits == sign) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = bits % sign / ones, mantissa = bits % ones;
  const double magnitude = std::ldexp(exponent == 0 ? mantissa : ones + mantissa,
                                      std::max(exponent, 1) - bias - info.mantissa_bits);
  return (bits & sign) == 0 ? magnitude : -magnitude;
}

}  // namespace

uint16_t EncodeBf16(float value) { return static_cast<uint16_t>(encoding::Bf16(BitsOf(value))); }

uint16_t EncodeF16(float value) {
  return static_cast<uint16_t>(encoding::Small<DType::f16>(BitsOf(value)));
}

uint8_t EncodeF8E4M3Fn(float value) {
  return static_cast<uint8_t>(encoding::Small<DType::f8e4m3fn>(BitsOf(value)));
}

uint8_t EncodeF8E5M2(float value) {
  return static_cast<uint8_t>(encoding::Small<DType::f8e5m2>(BitsOf(value)));
}

float DecodeBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
float DecodeF16(uint16_t bits) { return DecodeSmall<DType::f16>(bits); }
float DecodeF8E4M3Fn(uint8_t bits) { return DecodeSmall<DType::f8e4m3fn>(bits); }
float DecodeF8E5M2(uint8_t bits) { return DecodeSmall<DType::f8e5m2>(bits); }

void Encode(float value, DType dtype, void* out) {
  switch (dtype) {
    case DType::f32:
      return Store(value, out);
    case DType::f64:
      return Store(static_cast<double>(value), out);
    case DType::bf16:
      return Store(EncodeBf16(value), out);
    case DType::f16:
      return Store(EncodeF16(value), out);
    case DType::f8e4m3fn:
      return Store(EncodeF8E4M3Fn(value), out);
    case DType::f8e5m2:
      return Store(EncodeF8E5M2(value), out);
    default:
      Check(false, "a fraction for an integer");
  }
}

void EncodeNumber(double value, DType dtype, void* out) {
  const DTypeInfo& info = InfoOf(dtype);
  if (dtype == DType::f64) return Store(value, out);
  if (info.is_float()) return Encode(static_cast<float>(value), dtype, out);
  Check(Holds(dtype, value), "a number that an integer does not hold");
  const auto bits = static_cast<uint64_t>(static_cast<int64_t>(value));  // Both are below 2^53.
  std::memcpy(out, &bits, static_cast<size_t>(info.bytes));
}

void EncodeMissing(DType dtype, void* out) {
  if (dtype == DType::f32 || dtype == DType::f64) {
    return Encode(std::numeric_limits<float>::quiet_NaN(), dtype, out);
  }
  // The sign bit differs from all other bits, which yields NaN or the lowest integer.
  const DTypeInfo& info = InfoOf(dtype);
  auto* bytes = static_cast<uint8_t*>(out);
  std::fill_n(bytes, info.bytes, info.kind == DTypeKind::kSigned ? 0 : 0xFF);
  if (info.is_float()) bytes[info.bytes - 1] = 0x7F;
  if (info.kind == DTypeKind::kSigned) bytes[info.bytes - 1] = 0x80;
}

double Decode(const void* in, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Load<float>(in);
    case DType::f64:
      return Load<double>(in);
    case DType::bf16:
      return DecodeBf16(Load<uint16_t>(in));
    case DType::f16:
      return DecodeF16(Load<uint16_t>(in));
    case DType::f8e4m3fn:
      return DecodeF8E4M3Fn(Load<uint8_t>(in));
    case DType::f8e5m2:
      return DecodeF8E5M2(Load<uint8_t>(in));
    case DType::f8e8m0:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2fnuz:
    case DType::f6e2m3fn:
    case DType::f6e3m2fn:
    case DType::f4e2m1fn:
      return DecodeCarried(Load<uint8_t>(in), InfoOf(dtype));
    case DType::c64:
      Check(false, "two numbers as one");
      return 0;
    default:
      break;
  }
  const DTypeInfo& info = InfoOf(dtype);
  uint64_t bits = 0;
  std::memcpy(&bits, in, static_cast<size_t>(info.bytes));
  if (info.kind != DTypeKind::kSigned) return static_cast<double>(bits);
  const int above = 64 - 8 * info.bytes;  // the bits before the sign
  return static_cast<double>(static_cast<int64_t>(bits << above) >> above);
}

}  // namespace shardinit
