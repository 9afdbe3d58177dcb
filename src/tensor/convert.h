// Converts elements of one type to another.
#pragma once

#include <string>

#include "tensor/dtype.h"

namespace shardinit {

// Returns whether `value`, which Decode() returned for the element at `in`, is exact. Decode()
// rounds larger whole numbers of 64 bits.
bool IsDecodedExactly(const void* in, DType dtype, double value);

// Returns the element at `in` as text. Whole numbers have all their digits.
std::string NumberInText(const void* in, DType dtype);

// Converts the element of type `from` at `in` to type `to`, and writes it to `out`. A number
// becomes a float by one rounding to nearest even, via f32 for floats of fewer than 32 bits, as in
// every initializer. NaN stays NaN, and infinities are kept if the type has them. Returns false if
// `to` cannot hold the number: it is too large, not whole, or a whole number that would be rounded.
bool Convert(const void* in, DType from, DType to, void* out);

}  // namespace shardinit
