// Generates unpredictable random bits for names and keys, never for values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardinit {

void FillRandom(void* out, size_t bytes);
uint64_t RandomBits();

}  // namespace shardinit
