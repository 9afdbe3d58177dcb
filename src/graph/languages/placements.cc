#include "graph/languages/placements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kPlacementForms =
    "write `Shard(0)`, `Replicate()` or `_StridedShard(0, split_factor=4)`";

// The argument of this keyword, or at this position.
const PythonValue* Argument(const PythonValue& call, std::string_view keyword, size_t position) {
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

// The axes of one dimension, the major one first, and its segments.
class Order {
 public:
  explicit Order(const Mesh& mesh) : mesh_(mesh) {}

  // In front of those behind it in the mesh, unless it is strided. False: of no order here.
  bool Add(int axis, const Placement& placement) {
    size_t place = 0;
    if (placement.kind == Placement::kStridedShard) {
      int64_t parts = 1;
      while (place < cut_.axes.size() && parts < placement.split_factor) {
        parts *= mesh_.shape[static_cast<size_t>(cut_.axes[place++])];
      }
      if (parts != placement.split_factor) {
        if (!cut_.axes.empty()) return false;
        cut_.segments = placement.split_factor;
        place = 0;
      }
    }
    cut_.axes.insert(cut_.axes.begin() + static_cast<ptrdiff_t>(place), axis);
    return cut_.segments == 1 || cut_.axes.size() == 1;
  }

  const DimensionCut& cut() const { return cut_; }

 private:
  const Mesh& mesh_;
  DimensionCut cut_;
};

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
      std::string_view(value.name).substr(value.name.rfind('.') + 1);  // npos + 1 is 0.
  if (value.kind == PythonValue::kCall && name == "Partial") {
    context.Error(value.span, "a weight cannot be `Partial`: its parts would have to be added up",
                  "a checkpoint holds values; place it by `Replicate()` or `Shard(…)`");
    return {};
  }
  const bool is_strided = name == "_StridedShard";
  if (value.kind != PythonValue::kCall || !(is_strided || name == "Shard" || name == "Replicate")) {
    context.Error(value.span, fmt::format("{} is no placement", Quote(value.text)),
                  std::string(kPlacementForms));
    return {};
  }
  const size_t arguments = name == "Replicate" ? 0 : is_strided ? 2 : 1;
  const PythonValue* dim = Argument(value, "dim", 0);
  const PythonValue* factor = Argument(value, "split_factor", 1);
  if (factor == nullptr) factor = Argument(value, "sf", 1);  // As PyTorch prints it.
  if (value.items.size() != arguments || (arguments > 0 && dim == nullptr) ||
      (is_strided && factor == nullptr)) {
    context.Error(value.span,
                  fmt::format("`{}` has {} argument{}, not these", name, arguments,
                              arguments == 1 ? "" : "s"),
                  std::string(kPlacementForms));
    return {};
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

std::optional<std::vector<DimensionCut>> CutsOf(const std::vector<Placement>& placements,
                                                const TensorToCut& tensor,
                                                LanguageContext& context) {
  const Mesh& mesh = context.mesh;
  const int64_t rank = std::ssize(tensor.shape);
  std::vector<Order> orders(tensor.shape.size(), Order(mesh));
  for (size_t a = placements.size(); a-- > 0;) {
    const Placement& placement = placements[a];
    if (placement.kind == Placement::kReplicate) continue;
    const int64_t d = placement.dimension < 0 ? placement.dimension + rank : placement.dimension;
    if (d < 0 || d >= rank) {
      context.Error(placement.span,
                    fmt::format("`{}` has {} dimension{}, and so no dimension {}", tensor.path,
                                rank, rank == 1 ? "" : "s", placement.dimension));
      return {};
    }
    if (orders[static_cast<size_t>(d)].Add(static_cast<int>(a), placement)) continue;
    context.Error(placement.span,
                  fmt::format("no order of the axes that cut dimension {} of `{}` is that of its "
                              "_StridedShard",
                              d, tensor.path),
                  "its split_factor is the product of axes behind it, or it cuts the dimension "
                  "alone");
    return {};
  }
  std::vector<DimensionCut> cuts;
  for (size_t d = 0; d < orders.size(); ++d) {
    const DimensionCut& cut = orders[d].cut();
    const int64_t parts = PartsOf(cut, mesh);
    const auto divides = std::count_if(cut.axes.begin(), cut.axes.end(), [&](int axis) {
      return mesh.shape[static_cast<size_t>(axis)] > 1;
    });
    if (divides > 1 && tensor.shape[d] % parts != 0) {
      std::vector<std::string> names;
      for (const int axis : cut.axes) names.push_back(fmt::format("`{}`", mesh.axes[axis]));
      context.Error(placements[static_cast<size_t>(cut.axes.front())].span,
                    fmt::format("{} do not divide dimension {} of `{}` ({}) into {} equal parts, "
                                "and DTensor would cut it by one after the other",
                                fmt::join(names, " × "), d, tensor.path, tensor.shape[d], parts),
                    fmt::format("use a multiple of {}, or one axis for this dimension", parts));
      return {};
    }
    cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace shardinit
