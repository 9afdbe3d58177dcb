// Where a tensor's random numbers come from. For Philox4x32, version 1 of the contract of values
// defines the words:
//
// key     = first 8 bytes, little-endian, of
//           SHA-256("shardinit.key.v1" ‖ 00 ‖ seed as 8 bytes LE ‖ path in UTF-8)
// counter = (block low 32, block high 32, draw, 0)
// element i takes word i mod 4 of block i div 4.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace shardinit {

inline constexpr int kContractVersion = 1;

struct Engine;
extern const Engine kPhilox4x32;  // the default

inline constexpr uint64_t kNoSpare = ~uint64_t{0};
// The last position where a tensor may begin: beyond what a model of 2^63 - 1 bytes takes, with
// room to count on.
inline constexpr uint64_t kLastPlace = uint64_t{1} << 62;

// One of three things decides which numbers of an engine a tensor takes: a path, words, or a place.
struct DrawPath {
  std::string path;  // Tensors of one path take the same numbers. Empty: the tensor's own.
};
struct KeyWords {
  uint64_t key;  // a key that does not come from a path
};
// A place in an engine's one stream.
struct StreamPlace {
  uint64_t position = 0, spare = kNoSpare;
  bool is_relative = false;  // `position` counts words after the numbers that are drawn before.
};
using DrawKey = std::variant<DrawPath, KeyWords, StreamPlace>;

struct Stream {
  uint64_t key = 0;
  uint32_t draw = 0;          // numbers the random calls inside one initializer
  uint64_t position = 0;      // in a sequential engine: the words before the first number
  uint64_t spare = kNoSpare;  // where torch_cpu drew two numbers of which one is left
  // The numbers before were not made, and this stream's place depends on them: it begins at
  // `position` or behind it. Nothing is drawn from such a stream.
  bool is_least = false;
  const Engine* engine = &kPhilox4x32;

  auto operator<=>(const Stream&) const = default;
};

// Returns another draw of the same elements.
inline Stream DrawOf(Stream stream, uint32_t draw) {
  stream.draw = draw;
  return stream;
}

uint64_t KeyOf(uint64_t seed, std::string_view path);

}  // namespace shardinit
