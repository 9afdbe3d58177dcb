// Dimensions of a tensor by name and by position, and which of them are inputs and outputs.
#pragma once

#include <optional>
#include <string_view>

#include "graph/expand.h"
#include "graph/explanation.h"

namespace shardinit {

// The dimension that `ref`, a value of `key`, means. Reports that there is none.
std::optional<size_t> FindDimension(const TensorSpec& spec, const Shape& shape,
                                    std::string_view key, const DimensionRef& ref,
                                    Diagnostics& diagnostics);

// What the spec says of a tensor's dimensions; none if that is wrong. `notes` may be null.
std::optional<FanSource> BindFans(const Leaf& leaf, const Shape& shape, InitNotes* notes,
                                  Diagnostics& diagnostics);

}  // namespace shardinit
