// Computes CRC-32 as zip files have it (ISO 3309, the polynomial 0xEDB88320, bits reversed).
#pragma once

#include <libdeflate.h>

#include <cstdint>
#include <string_view>

namespace shardinit {

// Returns the CRC of all bytes so far; `before` is the CRC of those before `bytes`, or 0 if there
// are none.
inline uint32_t Crc32(uint32_t before, std::string_view bytes) {
  // libdeflate takes a null pointer, which an empty view may have, for a new beginning.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace shardinit
