#include "base/sha256.h"

// OpenSSL 3 deprecates these functions, but offers no others that let two computations share a
// core: EVP hides the hash value.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>

#include "base/error.h"
#include "base/sha256_pair.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(SHARDINIT_STATIC) && defined(__x86_64__)
extern "C" void OPENSSL_cpuid_setup();
extern "C" unsigned OPENSSL_ia32cap_P[4];  // CPUID words that OpenSSL's assembler reads
#elif defined(SHARDINIT_STATIC) && defined(__aarch64__)
extern "C" unsigned OPENSSL_armcap_P;
#endif

namespace shardinit {
namespace {

#if defined(SHARDINIT_STATIC) && defined(__x86_64__)
// A static libcrypto detects the CPU's instructions in its section `.init`. Some linkers omit that
// section, and hashes would take the slowest path.
[[maybe_unused]] const bool kProcessorIsKnown = (OPENSSL_cpuid_setup(), true);
#endif

constexpr size_t kBlock = SHA256_CBLOCK;

// Adds to the length in bits, which SHA256_CTX keeps next to the hash value.
void AddLength(SHA256_CTX* context, uint64_t bytes) {
  const uint64_t bits = (uint64_t{context->Nh} << 32 | context->Nl) + bytes * 8;
  context->Nl = static_cast<SHA_LONG>(bits);
  context->Nh = static_cast<SHA_LONG>(bits >> 32);
}

}  // namespace

struct Sha256::Context {
  SHA256_CTX sha;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  Check(SHA256_Init(&context_->sha) == 1, "SHA256_Init");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, size_t size) {
  Check(SHA256_Update(&context_->sha, data, size) == 1, "SHA256_Update");
}

void Sha256::UpdateBoth(Sha256& a, const void* a_data, size_t a_size, Sha256& b, const void* b_data,
                        size_t b_size) {
  SHA256_CTX* const contexts[2] = {&a.context_->sha, &b.context_->sha};
  const uint8_t* data[2] = {static_cast<const uint8_t*>(a_data),
                            static_cast<const uint8_t*>(b_data)};
  size_t sizes[2] = {a_size, b_size};
  const auto update = [&](int i, size_t size) {
    (i == 0 ? a : b).Update(data[i], size);
    data[i] += size;
    sizes[i] -= size;
  };
  if (HasSha256Pair()) {
    for (const int i : {0, 1}) {  // fill an unfinished block
      if (contexts[i]->num != 0) update(i, std::min(sizes[i], kBlock - contexts[i]->num));
    }
    const size_t blocks = std::min(sizes[0], sizes[1]) / kBlock;
    if (blocks > 0) {
      uint32_t* const states[2] = {contexts[0]->h, contexts[1]->h};
      CompressSha256Pair(states, data, blocks);
      for (const int i : {0, 1}) {
        AddLength(contexts[i], blocks * kBlock);
        data[i] += blocks * kBlock;
        sizes[i] -= blocks * kBlock;
      }
    }
  }
  update(0, sizes[0]);
  update(1, sizes[1]);
}

Digest Sha256::Finish() {
  Digest digest;
  Check(SHA256_Final(digest.data(), &context_->sha) == 1, "SHA256_Final");
  return digest;
}

Digest Sha256Of(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

bool Sha256UsesInstructions() {
#if defined(SHARDINIT_STATIC) && defined(__x86_64__)
  return HasSha256Pair() && (OPENSSL_ia32cap_P[2] >> 29 & 1) != 0;
#elif defined(SHARDINIT_STATIC) && defined(__aarch64__)
  return (OPENSSL_armcap_P >> 4 & 1) != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0;
#else
  return HasSha256Pair();  // A shared libcrypto asks the same CPUID when it is loaded.
#endif
}

std::array<uint8_t, 20> Sha1Of(std::string_view bytes) {
  std::array<uint8_t, 20> digest;
  static_assert(sizeof(digest) == SHA_DIGEST_LENGTH);
  // SHA1() would pull in nearly all of a static libcrypto.
  SHA_CTX sha;
  Check(SHA1_Init(&sha) == 1 && SHA1_Update(&sha, bytes.data(), bytes.size()) == 1 &&
            SHA1_Final(digest.data(), &sha) == 1,
        "SHA1_Init");
  return digest;
}

std::string ToHex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(2 * digest.size(), '\0');
  for (size_t i = 0; i < digest.size(); ++i) {
    hex[2 * i] = kDigits[digest[i] >> 4];
    hex[2 * i + 1] = kDigits[digest[i] & 15];
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
