#include "tensor/encode.h"

#include <algorithm>
#include <bit>
#include <cstring>

// Rounding to nearest even, on the bits. Dropping the low k bits of a number n
// rounds it down; adding half of 2^k first rounds to nearest with ties up;
// adding half minus one, plus the lowest bit that stays, sends ties to even:
//
//   bf16 of 0x3F808000 (1 + 2^-8, between 0x3F80 and 0x3F81, which is odd):
//   0x3F808000 + 0x7FFF + 0 = 0x3F80FFFF → 0x3F80;
//   0x3F818000 + 0x7FFF + 1 = 0x3F820000 → 0x3F82.
//
// A carry out of the mantissa adds one to the exponent, which is right too, and
// from the largest finite number leads to infinity.

namespace shardinit {
namespace {

template <typename T>
void StoreLittleEndian(T bits, void* out) {
  uint8_t bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(bits >> (8 * i));
  std::memcpy(out, bytes, sizeof(T));
}

template <typename T>
T LoadLittleEndian(const void* in) {
  uint8_t bytes[sizeof(T)];
  std::memcpy(bytes, in, sizeof(T));
  T bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) bits |= static_cast<T>(T{bytes[i]} << (8 * i));
  return bits;
}

}  // namespace

uint16_t EncodeBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

uint16_t EncodeF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude < 0x38800000) {
    // Below 2^-14: a multiple of 2^-24, which is what one unit in the last
    // place of 0.5 is. The f32 addition rounds, and the sum's mantissa is the result.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000));
  }
  magnitude = std::min(magnitude, 0x47800000u);  // 2^16 and more: infinity.
  magnitude -= 0x38000000;                       // Exponent bias 127 becomes 15.
  magnitude += 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (magnitude >> 13));
}

float DecodeBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float DecodeF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  uint32_t decoded;
  if (magnitude >= 0x7C00) {
    decoded = 0x7F800000 | (magnitude & 0x3FF) << 13;
  } else if (magnitude >= 0x400) {
    decoded = (magnitude << 13) + 0x38000000;
  } else {
    decoded = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | decoded);
}

void Encode(float value, DType dtype, void* out) {
  switch (dtype) {
    case DType::f32: return StoreLittleEndian(std::bit_cast<uint32_t>(value), out);
    case DType::f64:
      return StoreLittleEndian(std::bit_cast<uint64_t>(static_cast<double>(value)), out);
    case DType::bf16: return StoreLittleEndian(EncodeBf16(value), out);
    case DType::f16: return StoreLittleEndian(EncodeF16(value), out);
  }
}

double Decode(const void* in, DType dtype) {
  switch (dtype) {
    case DType::f32: return std::bit_cast<float>(LoadLittleEndian<uint32_t>(in));
    case DType::f64: return std::bit_cast<double>(LoadLittleEndian<uint64_t>(in));
    case DType::bf16: return DecodeBf16(LoadLittleEndian<uint16_t>(in));
    case DType::f16: return DecodeF16(LoadLittleEndian<uint16_t>(in));
  }
  return 0;
}

}  // namespace shardinit
