#include "graph/drawn/dimensions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

#include "base/suggest.h"

namespace shardinit {
namespace {

// A key and the dimensions that it gives.
struct DimensionUse {
  std::string_view key;
  const Rare<DimensionList>& list;
  std::vector<size_t> dimensions = {};
};

// Finds the dimensions of each key. Returns false if one is given twice or does not exist.
bool FindDimensions(const TensorSpec& spec, const Shape& shape, std::span<DimensionUse> uses,
                    std::vector<std::string_view>* taken, Diagnostics& diagnostics) {
  for (DimensionUse& use : uses) {
    if (!use.list) continue;
    for (const DimensionRef& ref : use.list->value) {
      const auto d = FindDimension(spec, shape, use.key, ref, diagnostics);
      if (!d) return false;
      std::string_view& by = (*taken)[*d];
      if (!by.empty()) {
        return diagnostics.Error(
            ref.span, by == use.key
                          ? fmt::format("dimension {} is twice in `{}`", *d, use.key)
                          : fmt::format("dimension {} is in `{}` and in `{}`", *d, by, use.key));
      }
      by = use.key;
      use.dimensions.push_back(*d);
    }
  }
  return true;
}

}  // namespace

std::optional<FanSource> BindFans(const Leaf& leaf, const Shape& shape, const Building& building) {
  const TensorSpec& spec = leaf.spec;
  for (const std::string_view key : {"fans", "in_axis", "out_axis", "batch_axis"}) {
    if (spec.wrong.Has(key)) return {};
  }
  const Located<std::string>* const order = spec.fans ? &*spec.fans : leaf.fans;
  if (order != nullptr && order->value.empty()) return {};
  FanSource source;
  if (order != nullptr) {
    source.order = order->value == "out_in" ? FanOrder::kOutIn : FanOrder::kInOut;
  }
  building.why.Note([&](Explanation& notes) {
    if (const auto& axes = spec.in_axis ? spec.in_axis : spec.out_axis) {
      notes.fans = {spec.in_axis ? "in_axis" : "out_axis", {}, {}, axes->span};
    } else if (order != nullptr) {
      notes.fans = {"fans", {}, order->value, order->span};
    }
  });
  if (!spec.in_axis && !spec.out_axis && !spec.batch_axis) return source;
  DimensionUse uses[] = {
      {"in_axis", spec.in_axis}, {"out_axis", spec.out_axis}, {"batch_axis", spec.batch_axis}};
  std::vector<std::string_view> taken(shape.size());
  if (!FindDimensions(spec, shape, uses, &taken, building.diagnostics)) return {};
  source.batch = uses[2].dimensions;
  if (!spec.in_axis && !spec.out_axis) return source;
  if (!spec.in_axis || !spec.out_axis) {
    // The only remaining dimension, if any, is the other one.
    const DimensionUse& given = spec.in_axis ? uses[0] : uses[1];
    DimensionUse& other = spec.in_axis ? uses[1] : uses[0];
    for (size_t d = 0; d < taken.size(); ++d) {
      if (taken[d].empty()) other.dimensions.push_back(d);
    }
    if (other.dimensions.size() > 1) {
      return building.diagnostics.Error(
          given.list->span,
          fmt::format("`{}` leaves dimensions {}, some of which may be the receptive field",
                      given.key, fmt::join(other.dimensions, ", ")),
          fmt::format("write `{}` too", other.key));
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
    return diagnostics.Error(ref.span,
                             fmt::format("`{}` is {}, but the tensor has {} dimension{}", key,
                                         *position, rank, rank == 1 ? "" : "s"),
                             rank == 0 ? "" : fmt::format("use {} to {}", -rank, rank - 1));
  }
  if (spec.wrong.Has("axes")) return {};
  const auto& name = std::get<std::string>(ref.value);
  std::vector<std::string> known;
  std::optional<size_t> found;
  for (size_t d = 0; spec.axes && d < spec.axes->value.size(); ++d) {
    known.push_back(spec.axes->value[d].value);
    if (known.back() != name) continue;
    if (found) {
      return diagnostics.Error(
          ref.span, fmt::format("dimensions {} and {} both have the name `{}`", *found, d, name),
          fmt::format("write a position, such as `{}: {}`", key, d));
    }
    found = d;
  }
  if (found) return found;
  std::erase(known, "");
  return diagnostics.Error(ref.span, fmt::format("the tensor has no axis `{}`", name),
                           known.empty() ? "write a position, such as `-1` for the last dimension"
                                         : DidYouMean(name, known));
}

}  // namespace shardinit
