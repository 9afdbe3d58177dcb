// DTensor's placements, which say of each mesh axis what it cuts, as cuts of dimensions, which say
// by which axes they are cut.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/languages/languages.h"
#include "graph/languages/python_text.h"

namespace shardinit {

struct Placement {
  enum Kind { kReplicate, kShard, kStridedShard };
  Kind kind = kReplicate;
  int64_t dimension = 0;  // From the end where it is negative.
  int64_t split_factor = 1;
  Span span = {};
};

// Whether the text is that of a placement, and not of a mesh axis.
bool IsPlacement(const PythonValue& value);

// Reports what is none, and `Partial`.
std::optional<Placement> ReadPlacement(const PythonValue& value, LanguageContext& context);

// `placements`: one for each mesh axis, in the mesh's order, by which DTensor cuts: each axis the
// parts that those before it made, a strided one each in split_factor segments. Of one that is
// strided by those behind it the axis cuts after these, where that is the same: so fully_shard
// leaves what parallelize_module has cut. Reports what cannot be.
std::optional<std::vector<DimensionCut>> CutsOf(const std::vector<Placement>& placements,
                                                const TensorToCut& tensor,
                                                LanguageContext& context);

}  // namespace shardinit
