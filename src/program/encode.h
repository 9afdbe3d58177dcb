// Converts numbers of a program to stored elements: floats as their bits.
#pragma once

#include "program/number.h"

namespace shardinit::program {

// Returns the bits of the nearest f32, including subnormals on processors without them.
Word32 RoundToF32(const Double& number);
// Converts the bits of an element of up to 32 bits.
Value AsStored(const Word32& bits, DType dtype);
// Converts a sampler's value.
Value Encoded(const Word32& bits, DType dtype);
// Converts an expression's number.
Value EncodedNumber(const Double& number, DType dtype, Function* in);
// Converts a number that is not drawn.
Value ConstantOf(const Function& out, double value, DType dtype);

// Returns the number for the bits of a finite float that Encoded() returned.
Double Decoded(const Value& bits, DType dtype, Function* out);

}  // namespace shardinit::program
