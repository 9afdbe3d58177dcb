// Recognizes bytes that were read before.
#pragma once

#include <cstdint>

namespace shardinit {

// A random hash (NH, of UMAC), which misses a difference with a probability of 2^-64. It is another
// one in each run, so it is for comparisons within one.
using Fingerprint = unsigned __int128;

// The most bytes that are hashed together.
inline constexpr int64_t kLargestPrint = 1 << 20;
Fingerprint FingerprintOf(const uint8_t* data, int64_t bytes);

}  // namespace shardinit
