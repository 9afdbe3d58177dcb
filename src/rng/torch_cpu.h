// The numbers of PyTorch's CPU generator, as torch 2.13 makes them on x86 processors with AVX2 (and
// AVX-512, which gives the same), as readable code: an element at a time. The kernels are tested
// against it, and it against PyTorch, bit for bit.
//
// A tensor takes words of one stream, MT19937 of the seed, from its place on: an f32 number one
// word, a normal one too, in groups of 16. A tensor whose size is no multiple of 16 has its last 16
// drawn anew from 16 words more. One of less than 16 elements takes four words for two normal
// numbers, computed in f64, the second of which is kept for the next such tensor.
#pragma once

#include <cstdint>
#include <optional>
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
// torch.nn.init.trunc_normal_(mean, std, low, high), which draws all again until none is outside.
struct TruncatedNormal {
  double mean, std, low, high;
};
using Draw = std::variant<Uniform, Normal, TruncatedNormal>;

// All that is drawn for a tensor. Of its stream, the key is the seed and `position` the first word.
struct Drawn {
  Draw draw;
  Stream stream;
  uint64_t elements;
  DType dtype;
  bool in_pairs = false;  // Normal numbers of memory that is not contiguous, however many.
};

inline constexpr uint64_t kGroup = 16;

// Whether normal numbers come in groups, else in pairs.
inline bool IsInGroups(const Drawn& drawn) { return !drawn.in_pairs && drawn.elements >= kGroup; }

// Words of a number that is drawn in a group.
inline uint64_t WordsEach(DType dtype) { return dtype == DType::f64 ? 2 : 1; }

// Words before those of the last 16 elements, which are drawn anew if n is no multiple of 16: f32
// and f64 have taken words for each element, the smaller types for those of whole groups alone.
inline uint64_t WordsBeforeAnew(const Drawn& drawn) {
  if (drawn.dtype == DType::f32 || drawn.dtype == DType::f64) {
    return drawn.elements * WordsEach(drawn.dtype);
  }
  return drawn.elements / kGroup * kGroup;
}

// As it is drawn, by Generator.random().
uint32_t WordAt(const Stream& stream, uint64_t position);
// That and the one behind it, as the low half.
uint64_t TwoWordsAt(const Stream& stream, uint64_t position);
// Number i of torch.randint(range) where the stream is: of one word each, or two.
uint64_t IntegerAt(const Stream& stream, uint64_t i, uint64_t range);

// torch.randperm(n), n < 2^28, which takes n - 1 words.
std::vector<uint32_t> Permutation(const Stream& stream, uint32_t n);

// The nearest number of the type, as f64.
double Rounded(double value, DType dtype);

// An element, rounded to the dtype.
double ElementOf(const Drawn& drawn, uint64_t element);

// Where the numbers drawn next begin. Not of a TruncatedNormal, whose rounds depend on the seed.
Stream After(const Drawn& drawn);
// The same, of a tensor whose numbers were all drawn this often.
Stream After(const Drawn& drawn, int rounds);

// The f32 numbers whose rounding to `dtype` is that of `bound`: from first to last.
struct Interval {
  float first, last;
};
Interval RoundedTo(DType dtype, double bound);

// Whether all numbers are drawn once, whatever they are: none can be outside of cut-offs.
bool IsOneRound(const Drawn& drawn);

}  // namespace shardinit::torch_cpu
