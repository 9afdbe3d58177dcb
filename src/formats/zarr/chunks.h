// Enumerates the chunks of a zarr array.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "tensor/box.h"

namespace shardinit {

// Calls visit(name, box) for each chunk of a non-empty array. The name is the chunk's place in the
// grid, such as `2.0`. The last chunks of a dimension may extend beyond the array.
template <typename F>
void ForEachChunk(const Shape& shape, const Shape& chunk, std::string_view separator, F visit) {
  for (Shape place(chunk.size(), 0);;) {
    Box box{Shape(chunk.size()), chunk};
    for (size_t d = 0; d < chunk.size(); ++d) box.offset[d] = place[d] * chunk[d];
    visit(chunk.empty() ? "0" : fmt::format("{}", fmt::join(place, separator)), std::move(box));
    size_t d = chunk.size();
    while (d > 0 && ++place[d - 1] * chunk[d - 1] >= shape[d - 1]) place[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace shardinit
