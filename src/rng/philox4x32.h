// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): section 3.3, table 2.
#pragma once

#include <array>
#include <cstdint>

namespace shardinit::philox4x32 {

using Words = std::array<uint32_t, 4>;

inline constexpr int kRounds = 10;
inline constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
// The Weyl sequence of round keys: golden ratio and sqrt(3) - 1, times 2^32.
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

Words Block(Words counter, std::array<uint32_t, 2> key);

}  // namespace shardinit::philox4x32
