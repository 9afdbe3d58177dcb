#include "rng/mt19937.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace shardinit {
namespace mt19937 {
namespace {

constexpr uint32_t kMatrix = 0x9908b0df;  // Its lowest bit is the paper's a_0.

// A polynomial over GF(2) of any degree.
using Bits = std::vector<uint64_t>;

// Computes to ^= from * t^shift.
void AddShifted(const Bits& from, int shift, Bits& to) {
  const size_t words = static_cast<size_t>(shift) / 64;
  const int bits = shift % 64;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 0) continue;
    to[i + words] ^= from[i] << bits;
    if (bits != 0) to[i + words + 1] ^= from[i] >> (64 - bits);
  }
}

// Returns the exponents below 19937 of the characteristic polynomial, by the formula of the paper
// (appendix A) for w = 32, r = 31: with p = t^624 + t^397 and q = t^623 + t^396,
// p q^31 + a_0 p q^30 + ... + a_30 p + a_31.
std::vector<int> CharacteristicExponents() {
  constexpr size_t kLength = kDegree / 64 + 4;
  Bits sum(kLength);  // Horner's scheme in q. p is multiplied at the end, since a_31 has no p.
  sum[0] = 1;
  for (int i = 0; i <= 30; ++i) {
    Bits next(kLength);
    AddShifted(sum, 623, next);
    AddShifted(sum, 396, next);
    next[0] ^= (kMatrix >> i) & 1;
    sum = std::move(next);
  }
  Bits whole(kLength);
  AddShifted(sum, 624, whole);
  AddShifted(sum, 397, whole);
  whole[0] ^= kMatrix >> 31;
  std::vector<int> exponents;
  for (int e = 0; e < kDegree; ++e) {
    if ((whole[static_cast<size_t>(e) / 64] >> (e % 64)) & 1) exponents.push_back(e);
  }
  return exponents;
}

// Returns the bits of a word with zeros inserted between them.
uint64_t Spread(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFF;
  x = (x | x << 8) & 0x00FF00FF00FF00FF;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0F;
  x = (x | x << 2) & 0x3333333333333333;
  return (x | x << 1) & 0x5555555555555555;
}

// Squares the polynomial modulo the characteristic polynomial; multiplies by t if `shifted`.
void Square(Polynomial& polynomial, bool shifted) {
  static const std::vector<int> exponents = CharacteristicExponents();
  constexpr size_t kWords = std::tuple_size_v<Polynomial>;
  std::array<uint64_t, 2 * kWords + 1> x;
  for (size_t i = 0; i < kWords; ++i) {
    x[2 * i] = Spread(static_cast<uint32_t>(polynomial[i]));
    x[2 * i + 1] = Spread(static_cast<uint32_t>(polynomial[i] >> 32));
  }
  x[2 * kWords] = 0;
  if (shifted) {
    for (size_t i = x.size(); --i > 0;) x[i] = x[i] << 1 | x[i - 1] >> 63;
    x[0] <<= 1;
  }
  // t^(19937 + k) is the sum of the t^(e + k). No exponent e is within 64 of the degree, so each
  // word only changes lower words.
  const auto fold = [&](uint64_t word, int position) {
    for (const int e : exponents) {
      const int to = position - kDegree + e, bits = to % 64;
      x[static_cast<size_t>(to) / 64] ^= word << bits;
      if (bits != 0) x[static_cast<size_t>(to) / 64 + 1] ^= word >> (64 - bits);
    }
  };
  for (size_t i = x.size(); --i >= kWords;) {
    if (const uint64_t word = std::exchange(x[i], 0)) fold(word, static_cast<int>(64 * i));
  }
  constexpr int kLast = kDegree % 64;
  const uint64_t word = x[kWords - 1] >> kLast;
  x[kWords - 1] &= (uint64_t{1} << kLast) - 1;
  fold(word, kDegree);
  std::copy_n(x.begin(), kWords, polynomial.begin());
}

}  // namespace

State Seeded(uint32_t seed) {
  State x;
  x[0] = seed;
  for (uint32_t i = 1; i < kState; ++i) x[i] = 1812433253u * (x[i - 1] ^ (x[i - 1] >> 30)) + i;
  return x;
}

void Extend(uint32_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t* x = out + i - kState;
    const uint32_t mixed = (x[0] & 0x80000000u) | (x[1] & 0x7FFFFFFFu);
    out[i] = x[kMiddle] ^ (mixed >> 1) ^ ((mixed & 1) != 0 ? kMatrix : 0);
  }
}

uint32_t Temper(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

Polynomial PowerOfT(uint64_t distance) {
  Polynomial power{};
  power[0] = 1;
  for (int bit = 64; bit-- > 0;) {
    if (distance >> bit != 0) Square(power, ((distance >> bit) & 1) != 0);
  }
  return power;
}

State Jump(const Polynomial& polynomial, const State& state, void (*extend)(uint32_t*, size_t)) {
  std::vector<uint32_t> x(kState + kDegree);
  std::copy(state.begin(), state.end(), x.begin());
  extend(&x[kState], kDegree);
  State sum;
  constexpr size_t kPart = 48;  // words that stay in registers
  static_assert(kState % kPart == 0);
  for (size_t part = 0; part < kState; part += kPart) {
    std::array<uint32_t, kPart> sums{};
    for (size_t w = 0; w < polynomial.size(); ++w) {
      for (uint64_t bits = polynomial[w]; bits != 0; bits &= bits - 1) {
        const uint32_t* from = &x[64 * w + static_cast<size_t>(__builtin_ctzll(bits)) + part];
        for (size_t i = 0; i < kPart; ++i) sums[i] ^= from[i];
      }
    }
    std::copy(sums.begin(), sums.end(), sum.begin() + part);
  }
  return sum;
}

}  // namespace mt19937

namespace {

using mt19937::kState;

// For more words than this, a jump is faster than generating the words in between.
constexpr uint64_t kNear = 4 << 20;

// Caches the last power: if rows of a tensor are sharded, several jumps in a row have the same
// distance.
const mt19937::Polynomial& PowerOfTFor(uint64_t distance) {
  thread_local uint64_t known = 0;
  thread_local std::unique_ptr<const mt19937::Polynomial> polynomial;
  if (!polynomial || known != distance) {
    polynomial = std::make_unique<const mt19937::Polynomial>(mt19937::PowerOfT(distance));
    known = distance;
  }
  return *polynomial;
}

}  // namespace

Mt19937::Mt19937(uint32_t seed, void (*extend)(uint32_t*, size_t)) : seed_(seed), extend_(extend) {
  const mt19937::State state = mt19937::Seeded(seed);
  std::copy(state.begin(), state.end(), x_.begin());
  Make();
}

const uint32_t* Mt19937::At(uint64_t position, size_t* count) {
  if (position < position_ || position - position_ >= kBatch) MoveTo(position);
  const size_t skipped = position - position_;
  *count = kBatch - skipped;
  return &x_[kState + skipped];
}

void Mt19937::MoveTo(uint64_t position) {
  if (position < position_) *this = Mt19937(seed_, extend_);
  if (position - position_ > kNear) {
    mt19937::State state;
    std::copy_n(x_.begin(), kState, state.begin());
    state = mt19937::Jump(PowerOfTFor(position - position_), state, extend_);
    std::copy(state.begin(), state.end(), x_.begin());
    position_ = position;
    return Make();
  }
  while (position - position_ >= kBatch) {
    std::copy_n(&x_[kBatch], kState, x_.begin());
    position_ += kBatch;
    Make();
  }
}

Mt19937& Mt19937At(uint32_t seed, uint64_t position, void (*extend)(uint32_t*, size_t)) {
  constexpr uint64_t kSame = 1 << 14;  // A stretch within this many words is moved, not copied: its
                                       // place will not be needed again.
  struct Place {
    uint64_t used = 0;
    std::unique_ptr<Mt19937> stream;
  };
  thread_local std::array<Place, 8> places;
  thread_local uint64_t uses = 0;
  Place *nearest = nullptr, *oldest = &places[0];
  for (Place& place : places) {
    if (place.used < oldest->used) oldest = &place;
    if (!place.stream || place.stream->seed() != seed || place.stream->position() > position) {
      continue;
    }
    if (!nearest || nearest->stream->position() < place.stream->position()) nearest = &place;
  }
  if (nearest == nullptr || position - nearest->stream->position() > kSame) {
    auto stream = nearest != nullptr ? std::make_unique<Mt19937>(*nearest->stream)
                                     : std::make_unique<Mt19937>(seed, extend);
    oldest->stream = std::move(stream);
    nearest = oldest;
  }
  nearest->used = ++uses;
  return *nearest->stream;
}

}  // namespace shardinit
