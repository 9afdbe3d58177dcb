// Converts the bits of an f32 to the bits of a smaller float. The functions are templates over the
// type U of 32-bit words: uint32_t, a vector of them (kernels/number-inl.h), or a type that writes
// the same operations into a program. Drawn numbers are never NaN, so some functions leave out the
// steps for NaN.
//
// Rounding is to nearest even, on the bits. Dropping the low k bits of a number n rounds it down.
// Adding half of 2^k first rounds to nearest with ties up. Adding half minus one, plus the lowest
// bit that stays, sends ties to even:
//
//   bf16 of 0x3F808000 (1 + 2^-8, between 0x3F80 and 0x3F81, which is odd):
//   0x3F808000 + 0x7FFF + 0 = 0x3F80FFFF → 0x3F80;
//   0x3F818000 + 0x7FFF + 1 = 0x3F820000 → 0x3F82.
//
// A carry out of the mantissa correctly adds one to the exponent. From the largest finite number it
// leads to infinity.

#if defined(SHARDINIT_ENCODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDINIT_ENCODE_INL
#undef SHARDINIT_ENCODE_INL
#else
#define SHARDINIT_ENCODE_INL
#endif

#include <cstdint>

#include "base/number.h"
#include "tensor/encode.h"

namespace SHARDINIT_FORMULAS::encoding {

inline constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// Returns bf16 in the upper half of the word; callers drop the lower half. The input is not NaN.
template <typename U>
SHARDINIT_INLINE U UpperBf16(U bits) {
  return bits + BitPlus<16>(bits, 0x7FFF);
}

template <typename U>
SHARDINIT_INLINE U Bf16(U bits) {
  const U nan = (bits >> 16) | 0x40u;
  const U rounded = UpperBf16(bits) >> 16;
  return Select<U>(U(kInfinity) < (bits & kMagnitude), nan, rounded);
}

// Encodes the bits without the sign. The input must not be NaN.
template <DType dtype, typename U>
SHARDINIT_INLINE U SmallMagnitude(U magnitude) {
  using T = SmallFloat<dtype>;
  // A subnormal is a multiple of the smallest subnormal number, which is one unit in the last place
  // of kPower. The f32 addition rounds, and the sum's mantissa is the result.
  const U subnormal = BitsOf(FromBits(magnitude) + FromBits(T::kPower)) - T::kPower;
  // Numbers beyond all finite ones are encoded as the next number would be.
  const U bounded = MinMagnitude(magnitude, T::kBeyond) - T::kRebias;
  const U normal = ShiftRight<T::kDropped>(
      U(bounded + BitPlus<T::kDropped>(bounded, (1u << (T::kDropped - 1)) - 1)));
  return Select<U>(IsLessMagnitude(magnitude, T::kSmallestNormal), subnormal, normal);
}

template <DType dtype, typename U>
SHARDINIT_INLINE U SmallSign(U bits) {
  return ShiftLeft<8 * SmallFloat<dtype>::kInfo.bytes - 1>(ShiftRight<31>(bits));
}

// Encodes a number that is not NaN.
template <DType dtype, typename U>
SHARDINIT_INLINE U SmallFinite(U bits) {
  return SmallSign<dtype>(bits) | SmallMagnitude<dtype>(U(bits & kMagnitude));
}

template <DType dtype, typename U>
SHARDINIT_INLINE U Small(U bits) {
  const U sign = SmallSign<dtype>(bits);
  const U magnitude = bits & kMagnitude;
  const U rounded = SmallMagnitude<dtype>(magnitude);
  return sign | Select<U>(U(kInfinity) < magnitude, SmallFloat<dtype>::kNan, rounded);
}

}  // namespace SHARDINIT_FORMULAS::encoding

#endif
