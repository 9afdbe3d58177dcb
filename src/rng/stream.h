// Describes where a tensor's random numbers come from. For Philox4x32, version 1 of the contract of
// values defines the words:
//
//   key     = first 8 bytes, little-endian, of
//             SHA-256("shardinit.key.v1" ‖ 00 ‖ seed as 8 bytes LE ‖ path in UTF-8)
//   counter = (block low 32, block high 32, draw, 0)
//   element i takes word i mod 4 of block i div 4.
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
// The last position where a tensor may begin. It is larger than a model of 2^63 - 1 bytes needs,
// and leaves room for counting.
inline constexpr uint64_t kLastPlace = uint64_t{1} << 62;

// A path, words, or a place decides which numbers of an engine a tensor takes.
struct DrawPath {
  std::string path;  // Tensors with the same path take the same numbers. Empty: the tensor's own.
};
struct KeyWords {
  uint64_t key;  // a key that is not derived from a path
};
// A place in the single stream of an engine.
struct StreamPlace {
  uint64_t position = 0, spare = kNoSpare;
  bool is_relative = false;  // `position` counts words after the numbers drawn before.
};
using DrawKey = std::variant<DrawPath, KeyWords, StreamPlace>;

struct Stream {
  uint64_t key = 0;
  uint32_t draw = 0;          // numbers the random calls inside one initializer
  uint64_t position = 0;      // in a sequential engine: the number of words before the first number
  uint64_t spare = kNoSpare;  // where torch_cpu drew two numbers and used only one
  // This stream begins at `position` or later: its place depends on earlier numbers, which were not
  // generated. No numbers are drawn from such a stream.
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
