// Computes the CRC-32 of zip files (ISO 3309, polynomial 0xEDB88320, bits reversed).
#pragma once

#include <libdeflate.h>

#include <cstdint>
#include <string_view>

namespace shardinit {

// Returns the CRC of all bytes so far. `before` is the CRC of the bytes before `bytes`, or 0 at the
// start.
inline uint32_t Crc32(uint32_t before, std::string_view bytes) {
  // libdeflate restarts at a null pointer, which an empty view may have.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}

}  // namespace shardinit
