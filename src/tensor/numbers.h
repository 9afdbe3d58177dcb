// Separates the numbers of elements that have several: numbers of 4 or 6 bits, and complex ones.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit {

// Returns how many numbers an element has. A complex element has two.
int NumberCount(DType dtype);
// Returns the type of these numbers: f32 for complex elements, else `dtype`.
DType NumberType(DType dtype);
// Returns the bytes of a separate number of such a type: one if it has fewer bits.
int NumberBytes(DType type);

// Writes the numbers of `count` elements to `out`, NumberBytes() each, as Decode() takes them.
void SeparateNumbers(DType dtype, const uint8_t* elements, int64_t count, uint8_t* out);

}  // namespace shardinit
