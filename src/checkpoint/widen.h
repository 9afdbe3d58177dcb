// Expands quantized tensors of 8 or 4 bits and their scales to the numbers that they represent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/workers.h"
#include "plan/plan.h"

namespace shardinit {

// How the numbers are stored:
// - kBlocks, as in DeepSeek-V3: `X` of f8e4m3fn and `X_scale_inv` of f32, f16 or bf16, one scale
//   for each block of a matrix. Blocks at its edges are smaller. A number is the product, in f32.
// - kMxfp4, as in gpt-oss: `X_blocks` and `X_scales`, 32 numbers of 4 bits for each scale, which is
//   a power of two. `X` has the last two dimensions swapped.
enum class Scheme { kBlocks, kMxfp4 };

struct Widening {
  Scheme scheme;
  Tensor numbers, scales;         // as they are stored
  int64_t rows = 0, columns = 0;  // the size of a block
  Tensor made;                    // has the requested type
};

using IsDropped = std::function<bool(const std::string& path)>;

// Throws Error (kUsage) if the config or a tensor shows that numbers are packed or scaled in a way
// that is not read. Rounding only the other tensors would convert half of a model.
void RequireReadable(const Plan& plan, const IsDropped& is_dropped);

// Returns the quantized tensors of the plan and their scales, except dropped ones. Throws Error
// (kUsage) if a tensor of 8 bits has scales that shardinit cannot apply.
std::vector<Widening> FindWidenings(const Plan& plan, DType dtype, const IsDropped& is_dropped);

// Returns a function that computes elements of the made tensor. The function throws Error (kUsage)
// if the type cannot hold an element.
BoxElements Widen(const Widening& widening, BoxElements numbers, BoxElements scales);

// Returns a config.json without its `quantization_config`.
std::string WithoutQuantization(const std::string& config);

}  // namespace shardinit
