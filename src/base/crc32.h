// Computes CRC-32 as zip files have it (ISO 3309, the polynomial 0xEDB88320, bits reversed).
#pragma once

#include <cstdint>
#include <string_view>

namespace shardinit {

// Returns the CRC of all bytes so far; `before` is the CRC of those before `bytes`, or 0 if there
// are none.
uint32_t Crc32(uint32_t before, std::string_view bytes);

}  // namespace shardinit
