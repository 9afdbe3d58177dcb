// Where a tensor's random numbers come from. Of Philox4x32 which words these are, by the contract
// of values, version 1:
//
// key     = first 8 bytes, little-endian, of
//           SHA-256("shardinit.key.v1" ‖ 00 ‖ seed as 8 bytes LE ‖ path in UTF-8)
// counter = (block low 32, block high 32, draw, 0)
// element i takes word i mod 4 of block i div 4.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace shardinit {

inline constexpr int kContractVersion = 1;

struct Engine;
extern const Engine kPhilox4x32;  // The default.

inline constexpr uint64_t kNoSpare = ~uint64_t{0};
// Where a tensor may begin: behind more than a model of 2^63 - 1 bytes takes, and with room to
// count on.
inline constexpr uint64_t kLastPlace = uint64_t{1} << 62;

// In the stream of torch_cpu.
struct StreamPlace {
  uint64_t position = 0, spare = kNoSpare;
  bool is_relative = false;  // `position` words after the numbers that are drawn before.
};

struct Stream {
  uint64_t key = 0;
  uint32_t draw = 0;          // Numbers the random calls inside one initializer.
  uint64_t position = 0;      // Of a sequential engine: numbers that are drawn before the first.
  uint64_t spare = kNoSpare;  // Where torch_cpu drew two numbers of which one is left.
  // Numbers before were not made, and it depends on them where these begin: at `position` or
  // behind it. Nothing is drawn from such a stream.
  bool is_least = false;
  const Engine* engine = &kPhilox4x32;

  auto operator<=>(const Stream&) const = default;
};

// Another draw of the same elements.
inline Stream DrawOf(Stream stream, uint32_t draw) {
  stream.draw = draw;
  return stream;
}

uint64_t KeyOf(uint64_t seed, std::string_view path);

}  // namespace shardinit
