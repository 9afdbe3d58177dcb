#include "base/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace shardinit {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;

// The remainder of each byte, as if zeros followed it.
constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}();

// Returns the remainder, which is the CRC with all bits inverted.
uint32_t Divide(uint32_t rest, std::string_view bytes) {
  for (const char c : bytes) rest = rest >> 8 ^ kTable[(rest ^ static_cast<uint8_t>(c)) & 0xff];
  return rest;
}

#if defined(__x86_64__)

bool IsFast() {
  static const bool kHas = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse2");
  return kHas;
}

// Multiplies the halves of sixteen bytes by the remainders of x^n in `factors`, where n is the
// distance to `next`, to which the products are added. The result has the same remainder.
__attribute__((target("pclmul,sse2"))) __m128i Fold(__m128i bytes, __m128i factors, __m128i next) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(bytes, factors, 0x00),
                                     _mm_clmulepi64_si128(bytes, factors, 0x11)),
                       next);
}

// Follows Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009): 64 bytes at once are folded into those behind them, until 16 bytes
// are left that have the same remainder as all.
__attribute__((target("pclmul,sse2"))) uint32_t DivideFast(uint32_t rest, std::string_view bytes) {
  constexpr size_t kLanes = 4, kLane = sizeof(__m128i);
  if (bytes.size() < kLanes * kLane) return Divide(rest, bytes);
  const auto load = [&](size_t lane) __attribute__((target("pclmul,sse2"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes.data()) + lane);
  };
  const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  __m128i lanes[kLanes] = {load(0), load(1), load(2), load(3)};
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(rest)));
  bytes.remove_prefix(kLanes * kLane);
  while (bytes.size() >= kLanes * kLane) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Fold(lanes[i], by_512, load(i));
    bytes.remove_prefix(kLanes * kLane);
  }
  __m128i all = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) all = Fold(all, by_128, lanes[i]);
  for (; bytes.size() >= kLane; bytes.remove_prefix(kLane)) all = Fold(all, by_128, load(0));
  char folded[kLane];
  memcpy(folded, &all, kLane);
  return Divide(Divide(0, {folded, kLane}), bytes);
}

#elif defined(__aarch64__)

bool IsFast() {
  constexpr unsigned long kCrc32 = 1 << 7;  // HWCAP_CRC32
  static const bool kHas = (getauxval(AT_HWCAP) & kCrc32) != 0;
  return kHas;
}

uint32_t DivideFast(uint32_t rest, std::string_view bytes) {
  for (uint64_t word; bytes.size() >= sizeof word; bytes.remove_prefix(sizeof word)) {
    memcpy(&word, bytes.data(), sizeof word);
    asm(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(rest) : "r"(word));
  }
  return Divide(rest, bytes);
}

#else

bool IsFast() { return false; }
uint32_t DivideFast(uint32_t rest, std::string_view bytes) { return Divide(rest, bytes); }

#endif

}  // namespace

uint32_t Crc32(uint32_t before, std::string_view bytes) {
  return ~(IsFast() ? DivideFast(~before, bytes) : Divide(~before, bytes));
}

uint32_t Crc32ByTable(uint32_t before, std::string_view bytes) { return ~Divide(~before, bytes); }

}  // namespace shardinit
