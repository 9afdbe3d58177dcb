// The numbers of PyTorch's CPU generator, as torch 2.13 makes them on x86 processors with AVX2 (and
// AVX-512, which gives the same), as readable code: an element at a time. Tests hold the kernels
// equal to it, and it equal to PyTorch, bit for bit.
//
// A tensor takes words of one stream, MT19937 of the seed, from its place on. An f32 number takes
// one word, and so does a normal one, in groups of 16. A tensor whose size is no multiple of 16 has
// its last 16 elements drawn anew from 16 more words. A tensor of fewer than 16 elements takes four
// words for two normal numbers, computed in f64; the second is kept for the next such tensor.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit::torch_cpu {

// Tensor.uniform_(low, high)
struct Uniform {
  double low, high;
};
// Tensor.normal_(mean, std)
struct Normal {
  double mean, std;
};
// torch.nn.init.trunc_normal_(mean, std, low, high), which draws all numbers again until none is
// outside
struct TruncatedNormal {
  double mean, std, low, high;
};
using Draw = std::variant<Uniform, Normal, TruncatedNormal>;

// All that is drawn for a tensor. The stream's key is the seed, and its `position` the first word.
struct Drawn {
  Draw draw;
  Stream stream;
  uint64_t elements;
  DType dtype;
  bool in_pairs = false;  // Memory is not contiguous: normal numbers come in pairs, however many.
};

inline constexpr uint64_t kGroup = 16;

// Whether normal numbers come in groups, not in pairs.
inline bool IsInGroups(const Drawn& drawn) { return !drawn.in_pairs && drawn.elements >= kGroup; }

// The number of words for a number that is drawn in a group.
inline uint64_t WordsEach(DType dtype) { return dtype == DType::f64 ? 2 : 1; }

// The number of words before those of the last 16 elements, which are drawn anew if n is no
// multiple of 16. f32 and f64 have taken words for each element, smaller types only for those of
// whole groups.
inline uint64_t WordsBeforeAnew(const Drawn& drawn) {
  if (drawn.dtype == DType::f32 || drawn.dtype == DType::f64) {
    return drawn.elements * WordsEach(drawn.dtype);
  }
  return drawn.elements / kGroup * kGroup;
}

// Returns the word as Generator.random() draws it.
uint32_t WordAt(const Stream& stream, uint64_t position);
// Returns that word as the high half, and the next one as the low half.
uint64_t TwoWordsAt(const Stream& stream, uint64_t position);
// Returns number i of torch.randint(range) from the stream's place on. Each takes one word or two.
uint64_t IntegerAt(const Stream& stream, uint64_t i, uint64_t range);

// Returns torch.randperm(n), n < 2^28, which takes n - 1 words.
std::vector<uint32_t> Permutation(const Stream& stream, uint32_t n);

// Returns the nearest number of the dtype, as f64.
double Rounded(double value, DType dtype);

// Returns an element, rounded to the dtype.
double ElementOf(const Drawn& drawn, uint64_t element);

// Returns where the next drawn numbers begin, if all numbers were drawn once. A TruncatedNormal
// needs the other overload: its number of rounds depends on the seed.
Stream After(const Drawn& drawn);
// Returns the same for a tensor whose numbers were all drawn `rounds` times.
Stream After(const Drawn& drawn, int rounds);

// The f32 numbers that round to `dtype` as `bound` does: from `first` to `last`.
struct Interval {
  float first, last;
};
Interval RoundedTo(DType dtype, double bound);

// Whether all numbers are drawn once for any seed, because none can be outside of the cut-offs.
bool IsOneRound(const Drawn& drawn);

}  // namespace shardinit::torch_cpu
