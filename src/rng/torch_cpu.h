// Generates the numbers of PyTorch's CPU generator, as torch 2.13 does on x86 processors with AVX2.
// (AVX-512 produces the same numbers.) This is readable code: one element at a time. Tests compare
// the kernels with it, and it with PyTorch, bit for bit.
//
// A tensor takes words of one stream, the MT19937 of the seed, from its place on.
// - An f32 number takes one word. So does a normal number, in groups of 16.
// - If a tensor's size is not a multiple of 16, its last 16 elements are redrawn from 16 more
//   words.
// - A tensor of fewer than 16 elements takes four words for two normal numbers, computed in f64.
//   The second number is kept for the next such tensor.
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
// torch.nn.init.trunc_normal_(mean, std, low, high), which redraws all numbers until none is
// outside
struct TruncatedNormal {
  double mean, std, low, high;
};
using Draw = std::variant<Uniform, Normal, TruncatedNormal>;

// Everything drawn for a tensor. The stream's key is the seed, and `position` is its first word.
struct Drawn {
  Draw draw;
  Stream stream;
  uint64_t elements;
  DType dtype;
  bool in_pairs = false;  // Memory is not contiguous, so normal numbers always come in pairs.
};

inline constexpr uint64_t kGroup = 16;

// Returns whether normal numbers come in groups, not in pairs.
inline bool IsInGroups(const Drawn& drawn) { return !drawn.in_pairs && drawn.elements >= kGroup; }

// Returns the number of words for each number that is drawn in a group.
inline uint64_t WordsEach(DType dtype) { return dtype == DType::f64 ? 2 : 1; }

// Returns the number of words before the words of the last 16 elements, which are redrawn if n is
// not a multiple of 16. By then f32 and f64 have taken words for each element, smaller types only
// for the elements of whole groups.
inline uint64_t WordsBeforeAnew(const Drawn& drawn) {
  if (drawn.dtype == DType::f32 || drawn.dtype == DType::f64) {
    return drawn.elements * WordsEach(drawn.dtype);
  }
  return drawn.elements / kGroup * kGroup;
}

// Returns a word as Generator.random() draws it.
uint32_t WordAt(const Stream& stream, uint64_t position);
// Returns the word at `position` as the high half, and the next word as the low half.
uint64_t TwoWordsAt(const Stream& stream, uint64_t position);
// Returns number i of torch.randint(range) from the stream's place on. Each takes one or two words.
uint64_t IntegerAt(const Stream& stream, uint64_t i, uint64_t range);

// Returns torch.randperm(n), n < 2^28, which takes n - 1 words.
std::vector<uint32_t> Permutation(const Stream& stream, uint32_t n);

// Returns the nearest number of the dtype, as f64.
double Rounded(double value, DType dtype);

// Returns an element, rounded to the dtype.
double ElementOf(const Drawn& drawn, uint64_t element);

// Returns where the next numbers begin, if all numbers were drawn once. A TruncatedNormal needs the
// other overload, because its number of rounds depends on the seed.
Stream StreamAfter(const Drawn& drawn);
// Returns where the next numbers begin, if all numbers were drawn `rounds` times.
Stream StreamAfter(const Drawn& drawn, int rounds);

// The f32 numbers, from `first` to `last`, that round to the same number of `dtype` as `bound`.
struct Interval {
  float first, last;
};
Interval RoundedTo(DType dtype, double bound);

// Returns whether any seed draws all numbers only once, because none can be outside the cut-offs.
bool IsOneRound(const Drawn& drawn);

}  // namespace shardinit::torch_cpu
