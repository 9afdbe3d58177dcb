// SHA-256 of bytes as they are made; the only door to OpenSSL.
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
  Digest Finish();  // Once.

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

Digest Sha256Of(std::string_view bytes);

std::string ToHex(const Digest& digest);
// False unless `hex` is 64 lower-case hexadecimal digits.
bool FromHex(std::string_view hex, Digest* digest);

}  // namespace shardinit
