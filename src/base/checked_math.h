// Adds, subtracts and multiplies int64 numbers, and reports overflow instead of wrapping: sizes,
// shapes and offsets come from users.
#pragma once

#include <cstdint>
#include <optional>

namespace shardinit {

inline std::optional<int64_t> Add(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<int64_t> Subtract(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_sub_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<int64_t> Multiply(int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Returns the smallest integer that is at least a / b. Requires b > 0.
inline int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

// Returns the smallest multiple of b that is at least a. Requires b > 0.
inline std::optional<int64_t> RoundUp(int64_t a, int64_t b) { return Multiply(CeilDiv(a, b), b); }

}  // namespace shardinit
