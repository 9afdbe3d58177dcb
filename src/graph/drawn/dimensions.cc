#include "graph/drawn/dimensions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/suggest.h"

namespace shardinit {
namespace {

std::optional<FanOrder> OrderOf(const std::optional<Located<std::string>>& fans) {
  if (!fans) return {};
  return fans->value == "out_in" ? FanOrder::kOutIn : FanOrder::kInOut;
}

// Returns the fans for an explanation.
Setting FansSetting(const Leaf& leaf) {
  const TensorSpec& spec = leaf.spec;
  const auto& axes = spec.in_axis ? spec.in_axis : spec.out_axis;
  const auto& order = spec.fans ? spec.fans : leaf.fans;
  if (axes) {
    return {spec.in_axis ? "in_axis" : "out_axis", {}, {}, axes->span};
  } else if (order) {
    return {"fans", {}, order->value, order->span};
  }
  return {};
}

}  // namespace

std::optional<FanSource> BindFans(const Leaf& leaf, const Shape& shape, InitNotes* notes,
                                  Diagnostics& diagnostics) {
  const TensorSpec& spec = leaf.spec;
  for (const std::string_view key : {"fans", "in_axis", "out_axis", "batch_axis"}) {
    if (spec.wrong.Has(key)) return {};
  }
  if (!spec.fans && leaf.fans && leaf.fans->value.empty()) return {};
  FanSource source{.order = OrderOf(spec.fans ? spec.fans : leaf.fans), .axes = {}, .batch = {}};
  if (notes != nullptr) notes->fans = FansSetting(leaf);
  if (!spec.in_axis && !spec.out_axis && !spec.batch_axis) return source;
  struct Use {
    std::string_view key;
    const std::optional<DimensionList>& list;
    std::vector<size_t> dimensions;
  };
  Use uses[] = {{"in_axis", spec.in_axis, {}},
                {"out_axis", spec.out_axis, {}},
                {"batch_axis", spec.batch_axis, {}}};
  std::vector<std::string_view> taken(shape.size());
  for (Use& use : uses) {
    if (!use.list) continue;
    for (const DimensionRef& ref : use.list->value) {
      const auto d = FindDimension(spec, shape, use.key, ref, diagnostics);
      if (!d) return {};
      if (!taken[*d].empty()) {
        diagnostics.Error(ref.span, taken[*d] == use.key
                                        ? fmt::format("dimension {} is twice in `{}`", *d, use.key)
                                        : fmt::format("dimension {} is in `{}` and in `{}`", *d,
                                                      taken[*d], use.key));
        return {};
      }
      taken[*d] = use.key;
      use.dimensions.push_back(*d);
    }
  }
  source.batch = uses[2].dimensions;
  if (!spec.in_axis && !spec.out_axis) return source;
  if (!spec.in_axis || !spec.out_axis) {
    // The only dimension that is left, if any, is the other one.
    Use& given = spec.in_axis ? uses[0] : uses[1];
    Use& other = spec.in_axis ? uses[1] : uses[0];
    for (size_t d = 0; d < taken.size(); ++d) {
      if (taken[d].empty()) other.dimensions.push_back(d);
    }
    if (other.dimensions.size() > 1) {
      diagnostics.Error(given.list->span,
                        fmt::format("`{}` leaves dimensions {}, and some of them may be the "
                                    "receptive field",
                                    given.key, fmt::join(other.dimensions, ", ")),
                        fmt::format("write `{}` too", other.key));
      return {};
    }
  }
  source.axes = {uses[0].dimensions, uses[1].dimensions};
  return source;
}

std::optional<size_t> FindDimension(const TensorSpec& spec, const Shape& shape,
                                    std::string_view key, const DimensionRef& ref,
                                    Diagnostics& diagnostics) {
  const int64_t rank = std::ssize(shape);
  if (const auto* position = std::get_if<int64_t>(&ref.value)) {
    if (*position >= -rank && *position < rank) {
      return static_cast<size_t>(*position < 0 ? *position + rank : *position);
    }
    diagnostics.Error(ref.span,
                      fmt::format("`{}` is {}, but the tensor has {} dimension{}", key, *position,
                                  rank, rank == 1 ? "" : "s"),
                      rank == 0 ? "" : fmt::format("from {} to {}", -rank, rank - 1));
    return {};
  }
  if (spec.wrong.Has("axes")) return {};
  const auto& name = std::get<std::string>(ref.value);
  std::vector<std::string> known;
  std::optional<size_t> found;
  for (size_t d = 0; spec.axes && d < spec.axes->value.size(); ++d) {
    known.push_back(spec.axes->value[d].value);
    if (known.back() != name) continue;
    if (found) {
      diagnostics.Error(
          ref.span, fmt::format("dimensions {} and {} both have the name `{}`", *found, d, name),
          fmt::format("write a position, such as `{}: {}`", key, d));
      return {};
    }
    found = d;
  }
  if (found) return found;
  std::erase(known, "");
  diagnostics.Error(ref.span, fmt::format("the tensor has no axis `{}`", name),
                    known.empty() ? "write a position, such as `-1` for the last dimension"
                                  : DidYouMean(name, known));
  return {};
}

}  // namespace shardinit
