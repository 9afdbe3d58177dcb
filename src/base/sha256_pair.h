// Computes two SHA-256 hashes at once on one core. A round waits for the one before it, so one
// computation leaves half of a core's SHA unit idle: two that take turns run in the time of one
// (measured on Zen 4: 2.9 GB/s together, where OpenSSL, or this code on one, does 1.5).
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardinit {

// Tells whether this CPU has SHA instructions and this build knows them.
bool HasSha256Pair();

// Takes `blocks` blocks of 64 bytes at `data[i]` into the hash value `states[i]` (H0 … H7), for i =
// 0 and 1, by FIPS 180-4, 6.2.2. Needs HasSha256Pair().
void CompressSha256Pair(uint32_t* const states[2], const uint8_t* const data[2], size_t blocks);

}  // namespace shardinit
