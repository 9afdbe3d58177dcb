// Computes Threefry2x32-20, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011): section 3.2, table 2.
#pragma once

#include <array>
#include <cstdint>

namespace shardinit::threefry2x32 {

using Words = std::array<uint32_t, 2>;

// Rounds come in groups of four. Each group ends with an addition of the key's words.
inline constexpr int kGroups = 5;
inline constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};  // used in turn
inline constexpr uint32_t kParity = 0x1BD11BDA;  // Skein's constant, which yields the third key
                                                 // word from the other two.

// U is a type of 32-bit words: uint32_t, or a type that writes the same operations into a program.
template <typename U>
std::array<U, 2> Block(std::array<U, 2> x, std::array<U, 2> key) {
  const U keys[3] = {key[0], key[1], key[0] ^ key[1] ^ kParity};
  x[0] = x[0] + keys[0];
  x[1] = x[1] + keys[1];
  for (int group = 1; group <= kGroups; ++group) {
    for (const int rotation : kRotations[(group - 1) % 2]) {
      x[0] = x[0] + x[1];
      x[1] = ((x[1] << rotation) | (x[1] >> (32 - rotation))) ^ x[0];
    }
    x[0] = x[0] + keys[group % 3];
    x[1] = x[1] + (keys[(group + 1) % 3] + static_cast<uint32_t>(group));
  }
  return x;
}

}  // namespace shardinit::threefry2x32
