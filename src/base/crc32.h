// CRC-32 as zip files have it (ISO 3309, the polynomial 0xEDB88320, bits reversed).
#pragma once

#include <cstdint>
#include <string_view>

namespace shardinit {

// Of all bytes so far, if `before` is that of those before these; 0: there are none.
uint32_t Crc32(uint32_t before, std::string_view bytes);

// The same, one byte after the other by a table: what it must be equal to.
uint32_t Crc32ByTable(uint32_t before, std::string_view bytes);

}  // namespace shardinit
