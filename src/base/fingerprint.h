// Recognizes bytes that were read before.
#pragma once

#include <cstdint>

namespace shardinit {

// A random hash (NH, of UMAC), which misses a difference with probability 2^-64. Compare hashes
// only within one run: each run uses another random key.
using Fingerprint = unsigned __int128;

// The maximum number of bytes to hash together.
inline constexpr int64_t kLargestPrint = 1 << 20;
Fingerprint FingerprintOf(const uint8_t* data, int64_t bytes);

}  // namespace shardinit
