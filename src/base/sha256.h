// Computes SHA-256 incrementally; only this file uses OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shardinit {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(const void* data, size_t size);
  void Update(std::string_view text) { Update(text.data(), text.size()); }
  Digest Finish();  // call once

  // Does the same as a.Update(…) and b.Update(…), in about half the time on CPUs that can
  // interleave them. The sizes should be about equal.
  static void UpdateBoth(Sha256& a, const void* a_data, size_t a_size, Sha256& b,
                         const void* b_data, size_t b_size);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Digest Sha256Of(std::string_view bytes);
// Returns whether both SHA-256 implementations, OpenSSL's and UpdateBoth's, use this CPU's SHA
// instructions. Without them, hashes are the same and about four times slower.
bool Sha256UsesInstructions();
// Computes SHA-1, for files that need it.
std::array<uint8_t, 20> Sha1Of(std::string_view bytes);

std::string ToHex(const Digest& digest);
// Returns false unless `hex` is 64 lower-case hexadecimal digits.
bool FromHex(std::string_view hex, Digest* digest);

}  // namespace shardinit
