#include "rng/stream.h"

#include "base/sha256.h"

namespace shardinit {

uint64_t KeyOf(uint64_t seed, std::string_view path) {
  uint8_t seed_bytes[8];
  for (int i = 0; i < 8; ++i) seed_bytes[i] = static_cast<uint8_t>(seed >> (8 * i));

  Sha256 sha;
  sha.Update(std::string_view("shardinit.key.v1\0", 17));
  sha.Update(seed_bytes, sizeof seed_bytes);
  sha.Update(path);
  const Digest digest = sha.Finish();

  uint64_t key = 0;
  for (int i = 0; i < 8; ++i) key |= uint64_t{digest[i]} << (8 * i);
  return key;
}

}  // namespace shardinit
