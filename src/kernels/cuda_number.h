// Defines the number types of formulas in CUDA kernels (base/number.h). Each contains several
// numbers of a thread, so that their operations do not wait for each other. Tests also compile it
// for CPUs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/number.h"

namespace shardinit::kernels::cuda {

// Conditions.
template <int n>
struct Flags {
  bool v[n];
};

// Words of 32 bits.
template <int n>
struct Words {
  Words() = default;
  SHARDINIT_INLINE Words(uint32_t word) {
    for (int i = 0; i < n; ++i) v[i] = word;
  }
  uint32_t v[n];
};

// Numbers of type f32.
template <int n>
struct Floats {
  Floats() = default;
  SHARDINIT_INLINE Floats(float number) {
    for (int i = 0; i < n; ++i) v[i] = number;
  }
  float v[n];
};

// Applies a function of plain numbers to each number.
template <class Result, class Function>
SHARDINIT_INLINE Result Each(Function function) {
  Result result;
  for (int i = 0; i < static_cast<int>(std::extent_v<decltype(Result::v)>); ++i) {
    result.v[i] = function(i);
  }
  return result;
}

#define SHARDINIT_OPERATOR(Type, Number, symbol)                                 \
  template <int n>                                                               \
  SHARDINIT_INLINE Type<n> operator symbol(const Type<n>& a, const Type<n>& b) { \
    return Each<Type<n>>([&](int i) { return a.v[i] symbol b.v[i]; });           \
  }                                                                              \
  template <int n>                                                               \
  SHARDINIT_INLINE Type<n> operator symbol(const Type<n>& a, Number b) {         \
    return Each<Type<n>>([&](int i) { return a.v[i] symbol b; });                \
  }                                                                              \
  template <int n>                                                               \
  SHARDINIT_INLINE Type<n> operator symbol(Number a, const Type<n>& b) {         \
    return Each<Type<n>>([&](int i) { return a symbol b.v[i]; });                \
  }
SHARDINIT_OPERATOR(Words, uint32_t, +)
SHARDINIT_OPERATOR(Words, uint32_t, -)
SHARDINIT_OPERATOR(Words, uint32_t, &)
SHARDINIT_OPERATOR(Words, uint32_t, |)
SHARDINIT_OPERATOR(Words, uint32_t, ^)
SHARDINIT_OPERATOR(Floats, float, +)
SHARDINIT_OPERATOR(Floats, float, -)
SHARDINIT_OPERATOR(Floats, float, *)
#undef SHARDINIT_OPERATOR

// Both halves of a product come from the same expression, so that compilers use one instruction for
// the two functions below.
SHARDINIT_INLINE uint64_t ProductOf(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * b;
#endif
}
template <int n>
SHARDINIT_INLINE Words<n> HighProduct(uint32_t a, const Words<n>& b) {
  return Each<Words<n>>([&](int i) { return static_cast<uint32_t>(ProductOf(b.v[i], a) >> 32); });
}
template <int n>
SHARDINIT_INLINE Words<n> operator*(const Words<n>& a, uint32_t b) {
  return Each<Words<n>>([&](int i) { return static_cast<uint32_t>(ProductOf(a.v[i], b)); });
}

template <int n>
SHARDINIT_INLINE Floats<n> operator-(const Floats<n>& a) {
  return Each<Floats<n>>([&](int i) { return -a.v[i]; });
}
template <int n>
SHARDINIT_INLINE Flags<n> operator<(const Floats<n>& a, float b) {
  return Each<Flags<n>>([&](int i) { return a.v[i] < b; });
}
template <int n>
SHARDINIT_INLINE Flags<n> operator>=(const Floats<n>& a, float b) {
  return Each<Flags<n>>([&](int i) { return a.v[i] >= b; });
}
template <int n>
SHARDINIT_INLINE Flags<n> operator==(const Floats<n>& a, float b) {
  return Each<Flags<n>>([&](int i) { return a.v[i] == b; });
}
template <int n>
SHARDINIT_INLINE Flags<n> operator!=(const Flags<n>& a, bool b) {
  return Each<Flags<n>>([&](int i) { return a.v[i] != b; });
}
template <int n>
SHARDINIT_INLINE bool AnyLess(const Floats<n>& a, float b) {
  bool any = false;
  for (int i = 0; i < n; ++i) any |= a.v[i] < b;
  return any;
}
template <int n>
SHARDINIT_INLINE bool AllLess(const Floats<n>& a, float b) {
  bool all = true;
  for (int i = 0; i < n; ++i) all &= a.v[i] < b;
  return all;
}

template <class N, int n>
SHARDINIT_INLINE N Select(const Flags<n>& condition, std::type_identity_t<N> yes,
                          std::type_identity_t<N> no) {
  return Each<N>([&](int i) { return condition.v[i] ? yes.v[i] : no.v[i]; });
}

template <int n>
SHARDINIT_INLINE Floats<n> Abs(const Floats<n>& a) {
  return Each<Floats<n>>([&](int i) { return std::fabs(a.v[i]); });
}
template <int n>
SHARDINIT_INLINE Floats<n> Min(const Floats<n>& a, float b) {
  return Each<Floats<n>>([&](int i) { return std::fmin(a.v[i], b); });
}
template <int n>
SHARDINIT_INLINE Floats<n> Max(const Floats<n>& a, float b) {
  return Each<Floats<n>>([&](int i) { return std::fmax(a.v[i], b); });
}
template <int n>
SHARDINIT_INLINE Floats<n> FusedMultiplyAdd(const Floats<n>& a, const Floats<n>& b,
                                            const Floats<n>& c) {
  return Each<Floats<n>>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
// Multiplies the power by `b` first, because both are the same for all numbers.
template <int n>
SHARDINIT_INLINE Floats<n> Product(const Floats<n>& a, float power, float b) {
  return a * (power * b);
}

#ifdef __CUDA_ARCH__
// These equal a device compiler's code for sqrt.rn.f32 and div.rn.f32, without the checks for
// operands that need more work: zeros, subnormal numbers and numbers beyond 2^±100. No formula uses
// the result for such operands.
SHARDINIT_INLINE float SqrtOf(float x) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  const float root = x * inverse, half = inverse * 0.5f;
  return std::fma(std::fma(-root, root, x), half, root);
}
SHARDINIT_INLINE float QuotientOf(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  inverse = std::fma(inverse, std::fma(-b, inverse, 1.0f), inverse);
  float quotient = a * inverse;
  quotient = std::fma(inverse, std::fma(-b, quotient, a), quotient);
  return std::fma(inverse, std::fma(-b, quotient, a), quotient);
}
#else
SHARDINIT_INLINE float SqrtOf(float x) { return std::sqrt(x); }
SHARDINIT_INLINE float QuotientOf(float a, float b) { return a / b; }
#endif
template <int n>
SHARDINIT_INLINE Floats<n> Sqrt(const Floats<n>& a) {
  return Each<Floats<n>>([&](int i) { return SqrtOf(a.v[i]); });
}
template <int n>
SHARDINIT_INLINE Floats<n> operator/(const Floats<n>& a, const Floats<n>& b) {
  return Each<Floats<n>>([&](int i) { return QuotientOf(a.v[i], b.v[i]); });
}
template <int n>
SHARDINIT_INLINE Floats<n> operator/(float a, const Floats<n>& b) {
  return Each<Floats<n>>([&](int i) { return QuotientOf(a, b.v[i]); });
}

template <int n>
SHARDINIT_INLINE Words<n> BitsOf(const Floats<n>& a) {
  return Each<Words<n>>([&](int i) { return std::bit_cast<uint32_t>(a.v[i]); });
}
template <int n>
SHARDINIT_INLINE Floats<n> FromBits(const Words<n>& a) {
  return Each<Floats<n>>([&](int i) { return std::bit_cast<float>(a.v[i]); });
}
template <int n>
SHARDINIT_INLINE Floats<n> SignedToF32(const Words<n>& a) {
  return Each<Floats<n>>([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}
template <int places, int n>
SHARDINIT_INLINE Words<n> ShiftLeft(const Words<n>& a) {
  return Each<Words<n>>([&](int i) { return a.v[i] << places; });
}
template <int places, int n>
SHARDINIT_INLINE Words<n> ShiftRight(const Words<n>& a) {
  return Each<Words<n>>([&](int i) { return a.v[i] >> places; });
}
template <int places, int n>
SHARDINIT_INLINE Words<n> ShiftSigned(const Words<n>& a) {
  return Each<Words<n>>(
      [&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> places); });
}
template <int bit, int n>
SHARDINIT_INLINE Flags<n> IsSet(const Words<n>& a) {
  return Each<Flags<n>>([&](int i) { return (a.v[i] >> bit & 1) != 0; });
}
template <int bit, int n>
SHARDINIT_INLINE Words<n> BitPlus(const Words<n>& a, uint32_t number) {
  return Each<Words<n>>([&](int i) { return (a.v[i] >> bit & 1) + number; });
}
template <int n>
SHARDINIT_INLINE Words<n> MinMagnitude(const Words<n>& a, uint32_t bound) {
  return Each<Words<n>>([&](int i) { return a.v[i] < bound ? a.v[i] : bound; });
}
template <int n>
SHARDINIT_INLINE Flags<n> IsLessMagnitude(const Words<n>& a, uint32_t bound) {
  return Each<Flags<n>>([&](int i) { return a.v[i] < bound; });
}

}  // namespace shardinit::kernels::cuda
