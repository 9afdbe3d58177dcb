// Defines the number operations that formulas use. Formulas are templates on these operations. They
// run on plain numbers and on vectors (kernels/number-inl.h), and are written into programs
// (program/number.h), always with the same operations in the same order.
//
// Some functions exist because vectors compute the same bits with fewer operations. The templates
// here define them; plain numbers and programs use the templates.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

// The namespace in which the headers of formulas define their templates. kernels/fill-inl.h
// redefines it and includes these headers again, once for each instruction set.
#define SHARDINIT_FORMULAS shardinit
// Formulas on vectors must be inlined, or their numbers would pass through memory.
#define SHARDINIT_INLINE inline

namespace shardinit {

template <typename T>
T Select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t BitsOf(double x) { return std::bit_cast<uint64_t>(x); }
inline float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline double FromBits(uint64_t bits) { return std::bit_cast<double>(bits); }

// All of these are exact or correctly rounded.
inline float Sqrt(float x) { return std::sqrt(x); }
inline double Sqrt(double x) { return std::sqrt(x); }
inline float Abs(float x) { return std::fabs(x); }
inline double Abs(double x) { return std::fabs(x); }
inline double Floor(double x) { return std::floor(x); }
inline double CopySign(double size, double sign) { return std::copysign(size, sign); }

// Returns the word as a signed integer, rounded to f32.
inline float SignedToF32(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word)); }
// Rounds toward zero.
inline uint32_t TruncatedToWord(float x) { return static_cast<uint32_t>(x); }
// Returns the word as a signed integer divided by a power of two, rounded down.
template <int places>
uint32_t ShiftSigned(uint32_t word) {
  return static_cast<uint32_t>(static_cast<int32_t>(word) >> places);
}

template <int places, typename U>
U ShiftRight(U word) {
  return word >> places;
}
template <int places, typename U>
U ShiftLeft(U word) {
  return word << places;
}

// Returns a condition for Select.
template <int bit, typename U>
auto IsSet(U word) {
  if constexpr (bit == 31) {
    return (word >> 31) != 0;
  } else {
    return (word & (1u << bit)) != 0;
  }
}
template <int bit, typename F, typename U>
F NegateIfSet(U word, F x) {
  const F negative = -x;
  return Select<F>(IsSet<bit>(word), negative, x);
}
// Returns bit `bit` of the word plus `number`.
template <int bit, typename U>
U BitPlus(U word, uint32_t number) {
  return ((word >> bit) & 1u) + number;
}

// Neither argument may be NaN.
template <typename F>
F Min(F x, std::type_identity_t<F> bound) {
  return Select<F>(bound < x, bound, x);
}
template <typename F>
F Max(F x, std::type_identity_t<F> bound) {
  return Select<F>(x < bound, bound, x);
}

// These functions compare magnitudes. The words are the bits of floats without the sign bit.
template <typename U>
U MinMagnitude(U x, uint32_t bound) {
  return Select<U>(U(bound) < x, bound, x);
}
template <typename U>
auto IsLessMagnitude(U x, uint32_t bound) {
  return x < U(bound);
}

// Returns x * power * y. The multiplication by `power`, a power of two, must be exact, so
// `x * (power * y)` is the same.
template <typename F, typename N>
F Product(F x, float power, N y) {
  const F scaled = x * power;
  return scaled * y;
}

// Return whether any or all of the numbers that are computed together are below the bound, so that
// work that no number needs is skipped. A generated program cannot know this.
inline bool AnyLess(float x, float bound) { return x < bound; }
inline bool AllLess(float x, float bound) { return x < bound; }

// Returns a * b + c, rounded once, as XLA computes f32 where it is free to. Not for subnormal
// results.
//
// The product, of 48 bits, is exact in f64. The sum is rounded to odd: if it is not exact, its last
// bit is 1. So it is never halfway between two f32 numbers unless the true sum is.
inline float FusedMultiplyAdd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double added = sum - product;
  const double error = (product - (sum - added)) + (addend - added);
  auto bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(std::bit_cast<double>(bits));
}

// Returns x * power * y + z, rounded once. The multiplication by the power of two must be exact.
template <typename F, typename N>
F FusedProductPlus(F x, float power, N y, N z) {
  const F scaled = x * power;
  return FusedMultiplyAdd(scaled, F(y), F(z));
}

// Returns a * b + c, rounded once.
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }

// Returns the upper 32 bits of a 64-bit product.
inline uint32_t HighProduct(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

}  // namespace shardinit
