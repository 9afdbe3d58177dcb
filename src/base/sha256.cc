#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace shardinit {
namespace {

// Looked up once: a look-up by name costs more than hashing a tensor's path.
const EVP_MD* Algorithm() {
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Check(kSha256 != nullptr, "OpenSSL has no SHA-256");
  return kSha256;
}

}  // namespace

void Sha256::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  Check(EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), Algorithm(), nullptr) == 1,
        "EVP_DigestInit_ex");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, size_t size) {
  Check(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), data, size) == 1,
        "EVP_DigestUpdate");
}

Digest Sha256::Finish() {
  Digest digest;
  Check(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), digest.data(), nullptr) == 1,
        "EVP_DigestFinal_ex");
  return digest;
}

Digest Sha256Of(std::string_view bytes) {
  Digest digest;
  Check(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, Algorithm(), nullptr) == 1,
        "EVP_Digest");
  return digest;
}

std::string ToHex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (const uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

bool FromHex(std::string_view hex, Digest* digest) {
  if (hex.size() != 64) return false;
  for (size_t i = 0; i < 64; ++i) {
    const char c = hex[i];
    int value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else {
      return false;
    }
    (*digest)[i / 2] = static_cast<uint8_t>(i % 2 ? (*digest)[i / 2] | value : value << 4);
  }
  return true;
}

}  // namespace shardinit
