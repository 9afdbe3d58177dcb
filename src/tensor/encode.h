// f32 → storage, one rounding to nearest even: the readable reference that the
// kernels are tested against, and what writes single elements. Little-endian.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace shardinit {

uint16_t EncodeBf16(float value);  // NaN stays NaN, overflow to infinity.
uint16_t EncodeF16(float value);   // Subnormals kept, overflow to infinity.
float DecodeBf16(uint16_t bits);
float DecodeF16(uint16_t bits);

// Writes one element of `dtype` to `out`; f64 holds the f32 value.
void Encode(float value, DType dtype, void* out);
// The stored element as a double (exact for every dtype).
double Decode(const void* in, DType dtype);

}  // namespace shardinit
