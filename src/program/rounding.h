// Corrects approximate square roots and quotients of f32 numbers to correctly rounded ones.
// Compilers for accelerators may approximate these two operations, but no other operations in
// programs.
//
// The words U are the bits of f32 numbers. `near` is the result with an error of up to 2 units in
// its last place. The corrections use only integers of 32 bits, because f64 may be missing or slow.
// The result is `near` if an operand or the result is 0, subnormal, infinite or NaN, or if the
// operand of a square root is negative.
//
// Compilers evaluate the arguments of a call in different orders, and here each argument writes a
// line of a program. So no call has two arguments that compute something.
//
// A normal number is m * 2^(e - 150), where e is its exponent's bits and m is in [2^23, 2^24).
#pragma once

#include <cstdint>

#include "base/number.h"

namespace shardinit::rounding {

inline constexpr uint32_t kOne = 0x800000;  // the lowest m, and an exponent of 1

// Conditions of programs have no &&, and clang warns about & between plain ones.
inline bool And(bool a, bool b) { return a && b; }

template <typename U>
U Mantissa(U bits) {
  return (bits & (kOne - 1)) | kOne;
}

// Returns whether e is the exponent of a normal number.
template <typename U>
auto IsNormal(U e) {
  return e - 1 < U(254);
}

// Returns the number with this e that is nearest to `near`. The correct result has this e, so no
// accuracy is lost, and a difference of m then counts units in the last place.
template <typename U>
U WithExponent(U e, U near) {
  const U low = e << 23;
  const U high = low + (kOne - 1);
  const U above = Max<U>(near, low);
  return Min<U>(above, high);
}

// Returns 1 for a word that is negative as a signed integer, otherwise 0.
template <typename U>
U IsNegative(U word) {
  return word >> 31;
}

// Takes an even power of two out of the operand, so that m = sqrt(x) for a whole x in [2^46, 2^48).
// m is too small if x > (m + 1/2)^2, and too large if x < (m - 1/2)^2. For whole numbers this is x
// - m^2 > m and x - m^2 <= -m: x is never halfway. Only the lower words of x and m^2 are needed,
// because |x - m^2| < 2^27. The rounded m is less than 2^24.
template <typename U>
U Sqrt(U a, U near) {
  const U e = a >> 23;
  const U half = ((e + 1) >> 1) + 63;
  const U odd_x = Mantissa(a) << 23;
  const U even_x = odd_x + odd_x;
  const auto is_odd = (e & 1) != 0;
  const U x = Select<U>(is_odd, odd_x, even_x);
  U bits = WithExponent(half, near);
  for (int i = 0; i < 2; ++i) {
    const U m = Mantissa(bits);
    const U rest = x - (m * m);
    const U more = IsNegative<U>(m - rest);
    const U less = IsNegative<U>((rest + m) - 1);
    bits = (bits + more) - less;
  }
  // A negative operand has an e of 256 or more.
  return Select<U>(IsNormal(e), bits, near);
}

// Takes a power of two out of the operands, so that m = x / y for whole x and y, with m in [2^23,
// 2^24). m is too small if 2 (x - m y) > y, and too large if 2 (x - m y) < -y. x / y is never
// halfway: 2m + 1 is odd and above 2^24, and would divide the smaller m of the first operand. Only
// the lower words are needed, because |2 (x - m y)| < 2^27. The rounded m is less than 2^24.
template <typename U>
U Quotient(U a, U b, U near) {
  const U sign = (a ^ b) & 0x80000000u;
  const U a_e = (a >> 23) & 255, b_e = (b >> 23) & 255;
  const U n = Mantissa(a), y = Mantissa(b);
  const U is_below = IsNegative<U>(n - y);
  const U e = ((a_e - b_e) + 127) - is_below;
  const U whole_x = n << 23;
  const U double_x = whole_x + whole_x;
  const auto doubles = is_below != 0;
  const U x = Select<U>(doubles, double_x, whole_x);
  U bits = WithExponent<U>(e, near & 0x7FFFFFFF);
  for (int i = 0; i < 2; ++i) {
    const U rest = x - (Mantissa(bits) * y);
    const U twice = rest + rest;
    const U more = IsNegative<U>(y - twice);
    const U less = IsNegative<U>(y + twice);
    bits = (bits + more) - less;
  }
  const auto b_normal = IsNormal(b_e);
  const auto a_normal = IsNormal(a_e);
  const auto normal = And(a_normal, b_normal);
  const U right = bits | sign;
  const auto e_normal = IsNormal(e);
  const auto is_right = And(normal, e_normal);
  return Select<U>(is_right, right, near);
}

}  // namespace shardinit::rounding
