// Finds dimensions of a tensor by name or position, and which of them are inputs and outputs.
#pragma once

#include <optional>
#include <string_view>

#include "graph/drawn/expand.h"

namespace shardinit {

// Returns the dimension that `ref`, a value of `key`, means; reports it if there is none.
std::optional<size_t> FindDimension(const TensorSpec& spec, const Shape& shape,
                                    std::string_view key, const DimensionRef& ref,
                                    Diagnostics& diagnostics);

// Returns what the spec says of a tensor's fan_in and fan_out dimensions, or nothing if that is
// wrong.
std::optional<FanSource> BindFans(const Leaf& leaf, const Shape& shape, const Building& building);

}  // namespace shardinit
