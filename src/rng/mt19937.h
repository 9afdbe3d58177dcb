// The Mersenne Twister MT19937 of Matsumoto and Nishimura (1998), any stretch of its stream alone.
//
// Its words follow the recurrence
//
//   x[k + 624] = x[k + 397] ^ A(upper bit of x[k], lower 31 bits of x[k + 1])
//
// and word p of the stream is x[624 + p], tempered. x[0] ... x[623] come from the seed. The
// recurrence is linear over GF(2): with t^d = sum g[i] t^i modulo its characteristic polynomial,
// x[k + d] is the exclusive or of the x[k + i] for which g[i] is 1. (Of x[0] only the upper bit
// counts; the others reach x[d] alone, of which they do not count either.) So a stream is moved on
// by any distance in the time of some twenty thousand words (Haramoto et al., "Efficient jump ahead
// for F2-linear random number generators", 2008).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardinit {

namespace mt19937 {

inline constexpr size_t kState = 624, kMiddle = 397;  // Words.
inline constexpr int kDegree = 19937;

using State = std::array<uint32_t, kState>;

State Seeded(uint32_t seed);
// x[624] ... of x[0] ... x[623], which stand before `out`.
void Extend(uint32_t* out, size_t count);
uint32_t Temper(uint32_t word);

// t^distance modulo the characteristic polynomial: bit i is the coefficient of t^i.
using Polynomial = std::array<uint64_t, (kDegree + 63) / 64>;
Polynomial PowerOfT(uint64_t distance);
// x[d] ... x[d + 623] for the d of the polynomial. `extend` as Extend.
State Jump(const Polynomial& polynomial, const State& state, void (*extend)(uint32_t*, size_t));

}  // namespace mt19937

// A stretch of a stream, moved to where words are wanted.
class Mt19937 {
 public:
  // `extend` is mt19937::Extend, or a faster one.
  Mt19937(uint32_t seed, void (*extend)(uint32_t*, size_t));

  uint32_t seed() const { return seed_; }
  uint64_t position() const { return position_; }  // Of the first word that is at hand.

  // Words from `position` on, not tempered, of which `*count` are there, at least 1.
  const uint32_t* At(uint64_t position, size_t* count);

 private:
  static constexpr size_t kBatch = 4 * mt19937::kState;

  void MoveTo(uint64_t position);
  void Make() { extend_(&x_[mt19937::kState], kBatch); }

  uint32_t seed_;
  void (*extend_)(uint32_t*, size_t);
  uint64_t position_ = 0;
  // Vectors may read beyond.
  alignas(64) std::array<uint32_t, mt19937::kState + kBatch + 16> x_{};
};

// Of this thread, which remembers where it was in a few places of a few streams: one from which
// `position` is near, if there is one.
Mt19937& Mt19937At(uint32_t seed, uint64_t position, void (*extend)(uint32_t*, size_t));

}  // namespace shardinit
