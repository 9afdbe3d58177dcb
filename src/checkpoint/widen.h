// Tensors of 8 or 4 bits beside their scales, as the numbers that both together stand for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/workers.h"
#include "plan/plan.h"

namespace shardinit {

// How the numbers are made:
// - kBlocks: as DeepSeek-V3 has them, `X` of f8e4m3fn and `X_scale_inv` of f32, one scale for each
//   block of a matrix, blocks at its edges being smaller. A number is the product, in f32.
// - kMxfp4: as gpt-oss has them, `X_blocks` and `X_scales`, 32 numbers of 4 bits to a scale, which
// is
//   a power of two. `X` has the last two dimensions exchanged.
enum class Scheme { kBlocks, kMxfp4 };

struct Widening {
  Scheme scheme;
  Tensor numbers, scales;         // as they are stored
  int64_t rows = 0, columns = 0;  // the size of a block
  Tensor made;                    // its type is the one that was asked for
};

using IsDropped = std::function<bool(const std::string& path)>;

// Throws Error (kUsage) if the config or a tensor says that numbers are packed or scaled in a way
// that is not read: rounding the other tensors would make half a model.
void RequireReadable(const Plan& plan, const IsDropped& is_dropped);

// Returns the tensors of the plan that stand for others, but none whose names match. Throws Error
// (kUsage) for tensors of 8 bits whose scales are there but not how to apply them.
std::vector<Widening> FindWidenings(const Plan& plan, DType dtype, const IsDropped& is_dropped);

// Returns the elements of the tensor that is made. They throw Error (kUsage) if the type does not
// hold one.
BoxElements Widen(const Widening& widening, BoxElements numbers, BoxElements scales);

// Returns a config.json without what says that tensors are of fewer bits.
std::string WithoutQuantization(const std::string& config);

}  // namespace shardinit
