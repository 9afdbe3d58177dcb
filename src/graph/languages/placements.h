// Converts DTensor's placements, which say what each mesh axis shards, into shardings of
// dimensions, which say by which axes each dimension is sharded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/languages/languages.h"
#include "graph/languages/python_text.h"

namespace shardinit {

struct Placement {
  enum Kind { kReplicate, kShard, kStridedShard };
  Kind kind = kReplicate;
  int64_t dimension = 0;  // negative: from the end
  int64_t split_factor = 1;
  Span span = {};
};

// Returns whether the text is that of a placement, and not of a mesh axis.
bool IsPlacement(const PythonValue& value);

// Reports a value that is not a placement, and `Partial`.
std::optional<Placement> ReadPlacement(const PythonValue& value, LanguageContext& context);

// Converts `placements`, one for each mesh axis in the mesh's order, as DTensor shards: each axis
// shards the parts that the axes before it made, and a strided one shards each of them in
// split_factor segments. If an axis is strided by the axes behind it, and the result is the same,
// it shards after them: this is how fully_shard shards what parallelize_module left. Reports what
// cannot be.
std::optional<std::vector<DimensionPartition>> DimensionsOf(
    const std::vector<Placement>& placements, const TensorToShard& tensor,
    LanguageContext& context);

}  // namespace shardinit
