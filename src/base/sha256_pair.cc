#include "base/sha256_pair.h"

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace shardinit {

#if defined(__x86_64__)

namespace {

// Constants of FIPS 180-4, 4.2.2.
alignas(16) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr int kLanes = 2;

}  // namespace

bool HasSha256Pair() {
  // Not __builtin_cpu_supports: some compilers do not know "sha", and some linkers omit the code
  // that fills its table, so that it always returns false.
  static const bool kHas = [] {
    unsigned eax, ebx, ecx, edx;
    const bool sse41 = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_SSE4_1) != 0;
    return sse41 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_SHA) != 0;
  }();
  return kHas;
}

__attribute__((target("sha,sse4.1"))) void CompressSha256Pair(uint32_t* const states[2],
                                                              const uint8_t* const data[2],
                                                              size_t blocks) {
  const auto load = [](const void* at) __attribute__((target("sha,sse4.1"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(at));
  };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions take the hash value as ABEF and CDGH.
  __m128i abef[kLanes], cdgh[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const __m128i cdab = _mm_shuffle_epi32(load(states[l]), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(load(states[l] + 4), 0x1B);
    abef[l] = _mm_alignr_epi8(cdab, efgh, 8);
    cdgh[l] = _mm_blend_epi16(efgh, cdab, 0xF0);
  }
  for (size_t block = 0; block < blocks; ++block) {
    __m128i words[kLanes][4], abef_before[kLanes], cdgh_before[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      abef_before[l] = abef[l];
      cdgh_before[l] = cdgh[l];
    }
#pragma GCC unroll 16
    for (ptrdiff_t i = 0; i < 16; ++i) {  // four rounds each
#pragma GCC unroll 2
      for (int l = 0; l < kLanes; ++l) {
        __m128i* const w = words[l];
        if (i < 4) {
          w[i] = _mm_shuffle_epi8(load(data[l] + block * 64 + i * 16), big_endian);
        } else {
          // Computes W[t] from W[t-16], W[t-15], W[t-7] and W[t-2], four at a time.
          const __m128i last = w[(i + 3) & 3];
          const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                            _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
          w[i & 3] = _mm_sha256msg2_epu32(sum, last);
        }
        const __m128i k = _mm_add_epi32(w[i & 3], load(kRoundConstants + 4 * i));
        cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], k);
        abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32(k, 0x0E));
      }
    }
    for (int l = 0; l < kLanes; ++l) {
      abef[l] = _mm_add_epi32(abef[l], abef_before[l]);
      cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    const __m128i feba = _mm_shuffle_epi32(abef[l], 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(cdgh[l], 0xB1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(states[l]), _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(states[l] + 4), _mm_alignr_epi8(dchg, feba, 8));
  }
}

#else

bool HasSha256Pair() { return false; }

void CompressSha256Pair(uint32_t* const[2], const uint8_t* const[2], size_t) {
  Check(false, "no SHA-256 of pairs here");
}

#endif

}  // namespace shardinit
