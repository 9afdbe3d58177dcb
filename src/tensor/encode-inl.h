// The bits of an f32 → those of a smaller float, as templates over what a word U of 32 bits is: a
// uint32_t, or what writes the same operations into a program.
//
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
#pragma once

#include <cstdint>

#include "base/number.h"
#include "tensor/encode.h"

namespace shardinit::encoding {

inline constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

template <typename U>
U Bf16(U bits) {
  const U nan = (bits >> 16) | 0x40u;
  const U rounded = (bits + (((bits >> 16) & 1u) + 0x7FFFu)) >> 16;
  return Select<U>(U(kInfinity) < (bits & kMagnitude), nan, rounded);
}

template <DType dtype, typename U>
U Small(U bits) {
  using T = SmallFloat<dtype>;
  const U sign = (bits >> 31) << (8 * T::kInfo.bytes - 1);
  const U magnitude = bits & kMagnitude;
  // A multiple of the smallest subnormal number, which is one unit in the last
  // place of kPower. The f32 addition rounds, and the sum's mantissa is the result.
  const U subnormal = BitsOf(FromBits(magnitude) + FromBits(T::kPower)) - T::kPower;
  // What is larger than all finite numbers is as good as the next one would be.
  const U bounded = Select<U>(U(T::kBeyond) < magnitude, T::kBeyond, magnitude) - T::kRebias;
  const U normal =
      (bounded + (((bounded >> T::kDropped) & 1u) + ((1u << (T::kDropped - 1)) - 1))) >>
      T::kDropped;
  const U finite = Select<U>(magnitude < U(T::kSmallestNormal), subnormal, normal);
  return sign | Select<U>(U(kInfinity) < magnitude, T::kNan, finite);
}

}  // namespace shardinit::encoding
