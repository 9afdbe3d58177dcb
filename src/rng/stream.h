// Which random words belong to a tensor: contract of values, version 1.
//
// key     = first 8 bytes, little-endian, of
//           SHA-256("shardinit.key.v1" ‖ 00 ‖ seed as 8 bytes LE ‖ path in UTF-8)
// counter = (block low 32, block high 32, draw, 0)
// element i takes word i mod 4 of block i div 4.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardinit {

inline constexpr int kContractVersion = 1;

struct Stream {
  uint64_t key = 0;
  uint32_t draw = 0;  // Numbers the random calls inside one initializer.
};

uint64_t KeyOf(uint64_t seed, std::string_view path);

}  // namespace shardinit
