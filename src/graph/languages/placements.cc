#include "graph/languages/placements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kPlacementForms =
    "write `Shard(0)`, `Replicate()` or `_StridedShard(0, split_factor=4)`";

// Returns the argument with this keyword or at this position.
const PythonValue* ArgumentOf(const PythonValue& call, std::string_view keyword, size_t position) {
  for (size_t i = 0; i < call.items.size(); ++i) {
    const PythonValue& item = call.items[i];
    if (item.keyword.empty() ? i == position : item.keyword == keyword) return &item;
  }
  return nullptr;
}

std::optional<int64_t> Number(const PythonValue& value, int64_t low, int64_t high,
                              std::string_view what, LanguageContext& context) {
  const ExprPtr expr = ParseExpr(value.text, value.span, context.building.diagnostics);
  if (expr == nullptr) return {};
  return context.Integer(*expr, low, high, what);
}

// Shards by the axes in this order: each axis shards the parts that previous axes left.
DimensionPartition InSteps(std::vector<int> axes, std::vector<int64_t> segments) {
  DimensionPartition by(std::move(axes));
  if (by.axes.size() == 1) {
    by.segments = segments.front();
  } else {
    by.nested = std::move(segments);
  }
  return by;
}

// Returns the steps of parallelize_module and fully_shard in their order, none of them in segments.
// fully_shard sharded by an axis if its split_factor is the product of the sizes of later axes.
// Returns nothing if some split_factor is not such a product.
std::optional<DimensionPartition> AsFullyShard(const DimensionPartition& steps, const Mesh& mesh) {
  std::vector<int> axes;
  for (size_t a = steps.axes.size(); a-- > 0;) {
    size_t place = 0;
    for (int64_t left = steps.nested[a]; left > 1; ++place) {
      if (place == axes.size() || left % mesh.shape[static_cast<size_t>(axes[place])] != 0)
        return {};
      left /= mesh.shape[static_cast<size_t>(axes[place])];
    }
    axes.insert(axes.begin() + static_cast<ptrdiff_t>(place), steps.axes[a]);
  }
  return InSteps(axes, std::vector<int64_t>(axes.size(), 1));
}

// Returns DTensor's sharding of a dimension, in a form that also holds for other extents.
DimensionPartition DimensionPartitionOf(std::vector<int> axes, std::vector<int64_t> segments,
                                        int64_t extent, const Mesh& mesh) {
  DimensionPartition steps = InSteps(std::move(axes), std::move(segments));
  steps.segments = std::min(steps.segments, extent);  // DTensor's further segments are empty
  if (SegmentsOf(steps) == 1 || steps.nested.empty()) return steps;
  const auto other = AsFullyShard(steps, mesh);
  const bool is_other =
      other && (extent % PartsOf(steps, mesh) == 0 || ShardAlike(extent, steps, *other, mesh));
  return is_other ? *other : steps;
}

}  // namespace

bool IsPlacement(const PythonValue& value) {
  return value.kind == PythonValue::kCall &&
         (value.name.ends_with("Shard") || value.name.ends_with("Replicate") ||
          value.name.ends_with("Partial"));
}

std::optional<Placement> ReadPlacement(const PythonValue& value, LanguageContext& context) {
  Placement placement;
  placement.span = value.span;
  const std::string_view name =
      std::string_view(value.name).substr(value.name.rfind('.') + 1);  // npos + 1 is 0
  if (value.kind == PythonValue::kCall && name == "Partial") {
    return context.Error(
        value.span, "a weight cannot be `Partial`, because its parts would have to be added up",
        "use `Replicate()` or `Shard(…)`");
  }
  const bool is_strided = name == "_StridedShard";
  if (value.kind != PythonValue::kCall || !(is_strided || name == "Shard" || name == "Replicate")) {
    return context.Error(value.span, fmt::format("{} is not a placement", Quote(value.text)),
                         std::string(kPlacementForms));
  }
  const size_t arguments = name == "Replicate" ? 0 : is_strided ? 2 : 1;
  const PythonValue* dim = ArgumentOf(value, "dim", 0);
  const PythonValue* factor = ArgumentOf(value, "split_factor", 1);
  if (factor == nullptr) factor = ArgumentOf(value, "sf", 1);  // as PyTorch prints it
  if (value.items.size() != arguments || (arguments > 0 && dim == nullptr) ||
      (is_strided && factor == nullptr)) {
    return context.Error(value.span,
                         fmt::format("`{}` takes {}, not these", name,
                                     Count(static_cast<int64_t>(arguments), "argument")),
                         std::string(kPlacementForms));
  }
  if (arguments == 0) return placement;
  const auto dimension = Number(*dim, -64, 64, "the dimension", context);
  const auto split = is_strided ? Number(*factor, 1, kMaxSegments, "`split_factor`", context)
                                : std::optional<int64_t>(1);
  if (!dimension || !split) return {};
  placement.kind = is_strided ? Placement::kStridedShard : Placement::kShard;
  placement.dimension = *dimension;
  placement.split_factor = *split;
  return placement;
}

std::optional<std::vector<DimensionPartition>> DimensionsOf(
    const std::vector<Placement>& placements, const TensorToShard& tensor,
    LanguageContext& context) {
  const Mesh& mesh = context.mesh;
  const int64_t rank = std::ssize(tensor.shape);
  std::vector<std::vector<int>> axes(tensor.shape.size());
  std::vector<std::vector<int64_t>> segments(tensor.shape.size());
  for (size_t a = 0; a < placements.size(); ++a) {
    const Placement& placement = placements[a];
    if (placement.kind == Placement::kReplicate) continue;
    const int64_t d = placement.dimension < 0 ? placement.dimension + rank : placement.dimension;
    if (d < 0 || d >= rank) {
      return context.Error(placement.span,
                           fmt::format("`{}` has {}, so there is no dimension {}", tensor.path,
                                       Count(rank, "dimension"), placement.dimension));
    }
    axes[static_cast<size_t>(d)].push_back(static_cast<int>(a));
    segments[static_cast<size_t>(d)].push_back(placement.split_factor);
  }
  std::vector<DimensionPartition> dimensions;
  int64_t boxes = 1;
  for (size_t d = 0; d < axes.size(); ++d) {
    if (axes[d].empty()) {
      dimensions.emplace_back();
      continue;
    }
    const Span place = placements[static_cast<size_t>(axes[d].front())].span;
    dimensions.push_back(
        DimensionPartitionOf(std::move(axes[d]), std::move(segments[d]), tensor.shape[d], mesh));
    if (PartsOf(dimensions.back(), mesh) == 1) dimensions.back().segments = 1;
    if (SegmentsOf(dimensions.back()) > kMaxSegments / boxes) {
      return context.Error(
          place, fmt::format("the split_factors of `{}` make more than {} segments on a rank",
                             tensor.path, kMaxSegments));
    }
    boxes *= SegmentsOf(dimensions.back());
  }
  return dimensions;
}

}  // namespace shardinit
