// Elements of one type as elements of another.
#pragma once

#include <string>

#include "tensor/dtype.h"

namespace shardinit {

// Returns whether `value`, which Decode() returned for the element at `in`, is that very number:
// larger whole numbers of 64 bits are rounded.
bool IsDecodedExactly(const void* in, DType dtype, double value);

// Returns the element at `in` as text, with all digits of a whole number.
std::string NumberInText(const void* in, DType dtype);

// Writes the element of `from` at `in` as one of `to`. A number becomes a float by one rounding, to
// nearest even, and to fewer than 32 bits over f32, as every initializer rounds. NaN stays NaN, and
// infinities stay where the type has them. Returns false if the type does not hold the number: if
// it is too large, no whole number, or a whole number that would be rounded.
bool Convert(const void* in, DType from, DType to, void* out);

}  // namespace shardinit
