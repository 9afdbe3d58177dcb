// Computes Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011): section 3.3, table 2.
#pragma once

#include <array>
#include <cstdint>

#include "base/number.h"

namespace shardinit::philox4x32 {

using Words = std::array<uint32_t, 4>;

inline constexpr int kRounds = 10;
inline constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
// The Weyl sequence of round keys adds the golden ratio and sqrt(3) - 1, times 2^32.
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// U is a type of 32-bit words: uint32_t, or a type that writes the same operations into a program.
template <typename U>
std::array<U, 4> Block(std::array<U, 4> x, std::array<U, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    x = {HighProduct(kMultiplier1, x[2]) ^ x[1] ^ key[0], x[2] * kMultiplier1,
         HighProduct(kMultiplier0, x[0]) ^ x[3] ^ key[1], x[0] * kMultiplier0};
    key[0] = key[0] + kWeyl0;
    key[1] = key[1] + kWeyl1;
  }
  return x;
}

}  // namespace shardinit::philox4x32
