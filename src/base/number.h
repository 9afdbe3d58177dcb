// What formulas ask of the numbers that they are made of. Written as templates with these, a
// formula is computed with plain numbers, and written into a program with those of
// program/number.h: both have the same operations in the same order.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace shardinit {

template <typename T>
T Select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t BitsOf(double x) { return std::bit_cast<uint64_t>(x); }
inline float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline double FromBits(uint64_t bits) { return std::bit_cast<double>(bits); }

// Each exact, or correctly rounded.
inline float Sqrt(float x) { return std::sqrt(x); }
inline double Sqrt(double x) { return std::sqrt(x); }
inline float Abs(float x) { return std::fabs(x); }
inline double Abs(double x) { return std::fabs(x); }
inline double Floor(double x) { return std::floor(x); }
inline double CopySign(double size, double sign) { return std::copysign(size, sign); }

// The word as a signed integer, rounded to f32.
inline float SignedToF32(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word)); }
// Divided by a power of two, rounded down, as a signed integer.
inline uint32_t ShiftSigned(uint32_t word, int places) {
  return static_cast<uint32_t>(static_cast<int32_t>(word) >> places);
}

// a * b + c, rounded once, as XLA computes f32 where it is free to; not for subnormal results.
//
// The product is exact in f64, of 48 bits. The sum is rounded to odd: where it is not exact, its
// last bit is 1, so that what is then rounded to f32 is never halfway between two when the true sum
// is not.
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

// The upper 32 bits of a product of 64.
inline uint32_t HighProduct(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

}  // namespace shardinit
