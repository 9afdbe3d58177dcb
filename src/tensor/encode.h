// Writes numbers in their stored form, little-endian. This is the readable reference for the
// kernels, and the code that writes single elements. An f32 is rounded once, to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit {

// Kernels, expressions and arrangements move numbers in their memory representation.
static_assert(std::endian::native == std::endian::little,
              "shardinit runs on little-endian machines only: here its files would be wrong");

// Constants for rounding to a float with fewer exponent bits than f32. They are bits of f32 numbers
// unless their comment says otherwise.
template <DType dtype>
struct SmallFloat {
  static constexpr DTypeInfo kInfo = InfoOf(dtype);
  static constexpr bool kHasInfinity = kInfo.kind == DTypeKind::kFloat;
  static constexpr int kBias = (1 << (kInfo.exponent_bits - 1)) - 1;
  static constexpr int kDropped = 23 - kInfo.mantissa_bits;  // mantissa bits
  // A code of the small type: the first that is not a finite number. It is infinity if the type has
  // one.
  static constexpr uint32_t kFirstNotFinite = kHasInfinity ? ((1u << kInfo.exponent_bits) - 1)
                                                                 << kInfo.mantissa_bits
                                                           : (1u << (8 * kInfo.bytes - 1)) - 1;
  static constexpr uint32_t kNan =
      kHasInfinity ? kFirstNotFinite | 1u << (kInfo.mantissa_bits - 1) : kFirstNotFinite;

  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormal = kRebias + (1u << 23);
  // The number that kFirstNotFinite would encode if it were finite.
  static constexpr uint32_t kBeyond = kRebias + (kFirstNotFinite << kDropped);
  // The power of two whose unit in the last place is the smallest subnormal number.
  static constexpr uint32_t kPower = kRebias + (static_cast<uint32_t>(1 + kDropped) << 23);
};

// NaN stays NaN. Overflow becomes infinity, or NaN in a type without infinities (f8e4m3fn).
uint16_t EncodeBf16(float value);
uint16_t EncodeF16(float value);  // f16 and both f8 types keep subnormals.
uint8_t EncodeF8E4M3Fn(float value);
uint8_t EncodeF8E5M2(float value);
float DecodeBf16(uint16_t bits);
float DecodeF16(uint16_t bits);
float DecodeF8E4M3Fn(uint8_t bits);
float DecodeF8E5M2(uint8_t bits);

// Writes one element of the float type `dtype` to `out`. f64 stores the f32 value.
void Encode(float value, DType dtype, void* out);
// Writes a number that is not drawn. f64 and integers store the number itself, other floats store
// its f32 value. An integer type must be able to hold it (tensor/dtype.h).
void EncodeNumber(double value, DType dtype, void* out);
// Writes the value that readers see for a missing piece: NaN. Integers have no NaN, so they use
// their least plausible number: the lowest if signed, otherwise (also for bool) all bits set.
void EncodeMissing(DType dtype, void* out);
// Returns the stored element as a double, exact except for i64 and u64 beyond 2^53. Of elements
// with several numbers, it takes one (tensor/numbers.h).
double Decode(const void* in, DType dtype);

}  // namespace shardinit
