#include "init/fans.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/table.h"
#include "init/formula.h"

namespace shardinit {
namespace {

// Returns the dimensions that are not batch dimensions.
std::vector<size_t> RestOf(const FanSource& source, size_t dimensions) {
  std::vector<size_t> rest;
  for (size_t d = 0; d < dimensions; ++d) {
    if (!Contains(source.batch, d)) rest.push_back(d);
  }
  return rest;
}

// `rest` contains the dimensions that are not batch dimensions, at least two.
FanAxes AxesOf(FanOrder order, const std::vector<size_t>& rest) {
  if (order == FanOrder::kOutIn) return {.in = {rest[1]}, .out = {rest[0]}};
  return {.in = {rest[rest.size() - 2]}, .out = {rest.back()}};
}

// `more` means that there are more than two dimensions.
std::string_view NameOf(FanOrder order, bool more) {
  if (order == FanOrder::kOutIn) return more ? "[out, in, …]" : "[out, in]";
  return more ? "[…, in, out]" : "[in, out]";
}

}  // namespace

std::optional<FanAxes> DirectionsOf(const FanSource& source, size_t dimensions) {
  if (source.axes) return source.axes;
  const std::vector<size_t> rest = RestOf(source, dimensions);
  if (rest.size() < 2) return {};
  return AxesOf(source.order.value_or(FanOrder::kOutIn), rest);
}

Reported Fans::Report(std::string message, std::string hint, Diagnostics& diagnostics) const {
  reported_ = true;
  return diagnostics.Error(place_, std::move(message), std::move(hint));
}

// Products are exact integers, because a tensor has fewer than 2^63 elements. Each is rounded once,
// at the end.
double Fans::Combine(std::string_view mode, const FanAxes& axes, std::string_view reason) const {
  const auto fan = [&](std::string_view name, const std::vector<size_t>& own,
                       const std::vector<size_t>& other) {
    int64_t product = 1;
    std::string formula, numbers;
    for (const bool field : {false, true}) {
      for (size_t d = 0; d < shape_->size(); ++d) {
        if (field ? Contains(own, d) || Contains(other, d) || Contains(source_->batch, d)
                  : !Contains(own, d)) {
          continue;
        }
        product *= (*shape_)[d];
        if (!explains()) continue;
        formula += fmt::format("{}n{}", formula.empty() ? "" : " * ", d);
        numbers += fmt::format("{}{}", numbers.empty() ? "" : " * ", (*shape_)[d]);
      }
    }
    const auto value = static_cast<double>(product);
    if (explains()) {
      Explain({std::string(name), formula, numbers, value, std::string(reason)});
    }
    return value;
  };
  if (mode == "fan_in") return fan(mode, axes.in, axes.out);
  if (mode == "fan_out") return fan(mode, axes.out, axes.in);
  const double in = fan("fan_in", axes.in, axes.out);
  const double out = fan("fan_out", axes.out, axes.in);
  static const Formula kAverage("fan_avg", "(fan_in + fan_out) / 2");
  static const Formula kGeometric("fan_geo_avg", "sqrt(fan_in * fan_out)");
  Check(mode == "fan_avg" || mode == "fan_geo_avg", "a mode of kFanModes");
  return (mode == "fan_avg" ? kAverage : kGeometric)({{"fan_in", in}, {"fan_out", out}}, *this);
}

std::optional<double> Fans::Get(std::string_view mode, Diagnostics& diagnostics) const {
  if (shape_ == nullptr) return Report(fmt::format("{} of no tensor", mode), {}, diagnostics);
  if (source_->axes) return Combine(mode, *source_->axes, "its axes");
  const std::vector<size_t> rest = RestOf(*source_, shape_->size());
  if (rest.size() < 2) {
    return Report(fmt::format("`{}` needs {}, which {} does not have", initializer_, mode,
                              rest.empty() ? "a scalar" : "one dimension"),
                  rest.empty() ? "use an initializer without fans, such as `normal`"
                               : "name the dimension, such as `in_axis: 0` or `out_axis: 0`",
                  diagnostics);
  }
  const bool more = rest.size() > 2;
  const auto fan = [&](FanOrder order) {
    return Combine(mode, AxesOf(order, rest), NameOf(order, more));
  };
  if (source_->order) return fan(*source_->order);
  Fans silent = *this;
  silent.working_ = nullptr;
  const auto silently = [&](FanOrder order) {
    return silent.Combine(mode, AxesOf(order, rest), {});
  };
  const double out_in = silently(FanOrder::kOutIn);
  const double in_out = silently(FanOrder::kInOut);
  if (out_in == in_out) return Combine(mode, AxesOf(FanOrder::kOutIn, rest), "either order");
  return Report(
      fmt::format("`{}` needs {}, which is {} if the shape is {} and {} if it is {}", initializer_,
                  mode, out_in, NameOf(FanOrder::kOutIn, more), in_out,
                  NameOf(FanOrder::kInOut, more)),
      fmt::format(
          "write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, Keras){}",
          more ? ", or name the dimensions with `in_axis`, `out_axis` and `batch_axis`" : ""),
      diagnostics);
}

}  // namespace shardinit
