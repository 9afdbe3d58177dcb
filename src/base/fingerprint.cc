#include "base/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace shardinit {

Fingerprint FingerprintOf(const uint8_t* data, int64_t bytes) {
  static const std::vector<uint64_t> key = [] {
    std::vector<uint64_t> words(kLargestPrint / sizeof(uint64_t));
    FillRandom(words.data(), words.size() * sizeof(uint64_t));
    return words;
  }();
  Fingerprint sums[2] = {0, 0};  // Two sums do not wait for each other.
  const uint64_t* next = key.data();
  const auto add = [&next](const void* from, size_t size, Fingerprint* sum) {
    uint64_t pair[2] = {0, 0};
    memcpy(pair, from, size);
    *sum += static_cast<Fingerprint>(pair[0] + next[0]) * (pair[1] + next[1]);
    next += 2;
  };
  int64_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    add(data + at, 16, &sums[0]);
    add(data + at + 16, 16, &sums[1]);
  }
  for (; at < bytes; at += 16) {
    add(data + at, static_cast<size_t>(std::min<int64_t>(16, bytes - at)), &sums[0]);
  }
  return sums[0] + sums[1];
}

}  // namespace shardinit
