// Defines the operations of expressions over elements. Each is a fixed sequence of IEEE-754 f64
// operations, so its bits are the same with every compiler, C library and processor.
// shardinit-values(7) lists the sequences.
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
  kF32,   // rounded to this type, ties to even
  kBf16,  // rounded to f32, then to this type; also kF16
  kF16,
};

// Computes out[i] = op(a[i], b[i], c[i]) for i < n. Operands that the operation does not use may be
// null. `out` may be one of the operands.
void Apply(ElementOp op, const double* a, const double* b, const double* c, double* out, size_t n);

double Apply(ElementOp op, double a, double b = 0, double c = 0);

// sin and cos of larger arguments are NaN: a double of that size does not determine the angle well
// enough to be useful.
inline constexpr double kLargestAngle = 0x1p26;

}  // namespace shardinit
