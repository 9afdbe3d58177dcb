// What an expression over elements computes with: every operation a fixed
// sequence of IEEE-754 f64 operations, so that its bits are the same with every
// compiler, C library and processor. shardinit-values(7) lists the sequences.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardinit {

enum class ElementOp : uint8_t {
  kNegate,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kWhere,  // a != 0 ? b : c
  kMin,
  kMax,
  kClip,  // min(max(a, b), c)
  kAbs,
  kFloor,
  kMod,      // a - floor(a / b) * b
  kCeilDiv,  // -floor(-a / b)
  kRoundUp,  // -floor(-a / b) * b
  kSqrt,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kPow,
  kSin,
  kCos,
  kTanh,
  kErfInv,
  kF32,   // Rounded to this type, ties to even;
  kBf16,  // to f32, and then to this one.
  kF16,
};

// out[i] = op(a[i], b[i], c[i]) for i < n; what the operation does not take may
// be null. `out` may be one of the operands.
void Apply(ElementOp op, const double* a, const double* b, const double* c, double* out, size_t n);

// One value.
double Apply(ElementOp op, double a, double b = 0, double c = 0);

// sin and cos of larger arguments are NaN: there a double says too little
// about the angle to be what anyone meant.
inline constexpr double kLargestAngle = 0x1p26;

}  // namespace shardinit
