// Generates words of the Mersenne Twister MT19937 of Matsumoto and Nishimura (1998), from any
// position in the stream.
//
// The words follow the recurrence
//
//   x[k + 624] = x[k + 397] ^ A(upper bit of x[k], lower 31 bits of x[k + 1])
//
// Word p of the stream is x[624 + p], tempered. The seed determines x[0] ... x[623]. The recurrence
// is linear over GF(2): if t^d = sum g[i] t^i modulo its characteristic polynomial, x[k + d] is the
// exclusive or of the x[k + i] for which g[i] is 1. (Only the upper bit of x[0] matters. Its other
// bits reach only x[d], where they do not matter either.) So moving by any distance takes as long
// as generating about twenty thousand words (Haramoto et al., "Efficient jump ahead for F2-linear
// random number generators", 2008).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace shardinit {

namespace mt19937 {

inline constexpr size_t kState = 624, kMiddle = 397;  // in words
inline constexpr int kDegree = 19937;

using State = std::array<uint32_t, kState>;

State Seeded(uint32_t seed);
// Computes x[624] ... from x[0] ... x[623], which are stored before `out`.
void Extend(uint32_t* out, size_t count);
uint32_t Temper(uint32_t word);

// Returns t^distance modulo the characteristic polynomial. Bit i is the coefficient of t^i.
using Polynomial = std::array<uint64_t, (kDegree + 63) / 64>;
Polynomial PowerOfT(uint64_t distance);
// Returns x[d] ... x[d + 623], where t^d is the polynomial. `extend` must do what Extend does.
State Jump(const Polynomial& polynomial, const State& state, void (*extend)(uint32_t*, size_t));

}  // namespace mt19937

// A part of a stream in memory, which moves to the requested words.
class Mt19937 {
 public:
  // `extend` is mt19937::Extend or a faster equivalent.
  Mt19937(uint32_t seed, void (*extend)(uint32_t*, size_t));

  uint32_t seed() const { return seed_; }
  uint64_t position() const { return position_; }  // position of the first word in memory

  // Returns words from `position` on, not tempered. Sets `*count` to their number, at least 1.
  const uint32_t* At(uint64_t position, size_t* count);

 private:
  static constexpr size_t kBatch = 4 * mt19937::kState;

  void MoveTo(uint64_t position);
  void Make() { extend_(&x_[mt19937::kState], kBatch); }

  uint32_t seed_;
  void (*extend_)(uint32_t*, size_t);
  uint64_t position_ = 0;
  // Vectors may read beyond the last batch.
  alignas(64) std::array<uint32_t, mt19937::kState + kBatch + 16> x_{};
};

// Returns one of this thread's Mt19937s, which remember a few positions in a few streams. Prefers
// one near `position`.
Mt19937& Mt19937At(uint32_t seed, uint64_t position, void (*extend)(uint32_t*, size_t));

}  // namespace shardinit
