// Converts DTensor placements (which dimension each mesh axis shards) to partitions (which mesh
// axes shard each dimension).
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

// Returns whether the text is a placement rather than a mesh axis.
bool IsPlacement(const PythonValue& value);

// Reports a value that is not a placement, or is `Partial`.
std::optional<Placement> ReadPlacement(const PythonValue& value, LanguageContext& context);

// Converts `placements`, one for each mesh axis in mesh order, as DTensor shards. Each axis shards
// the parts that earlier axes made. A strided axis shards each part in split_factor segments. An
// axis that is strided by later axes shards after them if the result is the same: this is how
// fully_shard shards the output of parallelize_module. Reports placements that cannot be converted.
std::optional<std::vector<DimensionPartition>> DimensionsOf(
    const std::vector<Placement>& placements, const TensorToShard& tensor,
    LanguageContext& context);

}  // namespace shardinit
