// Finds a tensor's dimensions by name or position, and its input and output dimensions.
#pragma once

#include <optional>
#include <string_view>

#include "graph/drawn/expand.h"

namespace shardinit {

// Returns the dimension that `ref`, a value of `key`, names. Reports a missing one.
std::optional<size_t> FindDimension(const TensorSpec& spec, const Shape& shape,
                                    std::string_view key, const DimensionRef& ref,
                                    Diagnostics& diagnostics);

// Returns the tensor's fan_in and fan_out dimensions as the spec gives them, or nothing if wrong.
std::optional<FanSource> BindFans(const Leaf& leaf, const Shape& shape, const Building& building);

}  // namespace shardinit
