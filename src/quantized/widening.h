// Computes the numbers that quantized tensors represent, with each rounding of their owners.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "generate/workers.h"
#include "graph/tensor.h"
#include "quantized/codes.h"

namespace shardinit {

// A tensor that is computed from several stored ones. All are stacks of matrices, whose element is
//
//   round to `made`(round to `through`((value of code - zero) * scale * times))
//
// Products are rounded to f32. A matrix is cut into blocks of rows and columns, each with its own
// scale and zero; blocks at its edges may be smaller.
struct Widening {
  // The stored tensors. Only numbers and scales are always there; others have an empty path.
  enum Part { kNumbers, kScales, kZeros, kGlobal, kParts };
  // How a scale is computed.
  enum class Scale : uint8_t {
    kItself,
    kExponent,     // of two, plus 127. 255 is infinity.
    kByGlobal,     // is divided by the element of kGlobal
    kTimesGlobal,  // is multiplied by the element of kGlobal
    kNested,       // scale_values[itself] times an element of kGlobal, plus `offset`
  };

  // How its library computes the scales of new numbers.
  enum class Fresh : uint8_t {
    kNone,        // not known here
    kReciprocal,  // DeepSeek: 448 / largest is stored inverted
    kPowerOfTwo,  // the same, rounded up to a power of two
    kRange,       // compressed-tensors: range of the numbers / range of the values, in their type
    kMx,          // compressed-tensors: a power of two, from the exponent of the largest number
    kF32Range,    // ModelOpt: largest / half of the range of values, in f32
    kNvfp4,       // compressed-tensors and ModelOpt: a scale for the scales of a tensor
    kLargest,     // bitsandbytes: the largest number
  };

  std::array<Tensor, kParts> parts;
  std::vector<std::string> unused;  // other stored tensors that only a quantized model needs
  CodeMatrices codes;
  std::vector<float> values;  // of each code
  int64_t block_rows = 1, block_columns = 1;
  Scale scale = Scale::kItself;
  std::vector<float> scale_values;  // of each code of a nested scale
  int64_t nested_block = 1;         // nested scales that share an element of kGlobal
  float offset = 0, times = 1;
  CodeMatrices zero_codes;   // a matrix of the blocks
  std::vector<float> zeros;  // the zero of each code
  Fresh fresh = Fresh::kNone;
  std::string_view unknown = "the rule of its library is not known";  // if `fresh` is kNone
  DType through = DType::f32;
  bool is_exact = false;       // infinite products, and the exponent 255, are errors
  bool is_transposed = false;  // the matrices of `made` have the stored rows as columns
  Tensor made;                 // has the requested type

  const Tensor& numbers() const { return parts[kNumbers]; }
  const Tensor& scales() const { return parts[kScales]; }
};

// Returns a function that computes elements of the made tensor. `stored` reads each part. The
// function throws Error (kUsage) if the type cannot hold an element.
BoxElements Widen(const Widening& widening, std::array<BoxElements, Widening::kParts> stored);

}  // namespace shardinit
