// Finds quantized tensors in a model, by their names and shapes and by its config.json.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "quantized/widening.h"

namespace shardinit {

using IsDropped = std::function<bool(const std::string& path)>;
// Returns the elements of a stored tensor, each a single number.
using ReadWhole = std::function<std::vector<double>(const Tensor& tensor)>;

// Throws Error (kUsage) if the config or a tensor shows that numbers are packed or scaled in a way
// that is not read. Rounding only the other tensors would convert half of a model.
void RequireReadable(const Plan& plan, const IsDropped& is_dropped);

// Returns the quantized tensors of the plan, except dropped ones, as tensors of type `dtype`.
// Throws Error (kUsage) if a tensor is quantized in a way that is not read.
std::deque<Widening> FindWidenings(const Plan& plan, DType dtype, const IsDropped& is_dropped,
                                   const ReadWhole& read);

}  // namespace shardinit
