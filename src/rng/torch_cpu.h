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
};

inline constexpr uint64_t kGroup = 16;

// Words before those of the last 16 elements, which are drawn anew if n is no multiple of 16: f32
// has taken a word for each element, the smaller types one for those of whole groups alone.
inline uint64_t WordsBeforeAnew(const Drawn& drawn) {
  return drawn.dtype == DType::f32 ? drawn.elements : drawn.elements / kGroup * kGroup;
}

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

// Whether no number can be outside of the cut-offs.
bool IsOneRound(const Drawn& drawn);

}  // namespace shardinit::torch_cpu
