#include "init/fans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardinit {
namespace {

struct FanPair {
  double in, out;
};

double Combine(std::string_view mode, FanPair fans) {
  if (mode == "fan_in") return fans.in;
  if (mode == "fan_out") return fans.out;
  if (mode == "fan_avg") return (fans.in + fans.out) / 2;
  Check(mode == "fan_geo_avg", "a mode of kFanModes");
  return std::sqrt(fans.in * fans.out);
}

bool Holds(const std::vector<size_t>& dimensions, size_t d) {
  return std::find(dimensions.begin(), dimensions.end(), d) != dimensions.end();
}

// Exact: a tensor has fewer than 2^63 elements, and each product is rounded
// once, at the end.
FanPair FansOf(const Shape& shape, const FanAxes& axes,
               const std::vector<size_t>& batch) {
  int64_t in = 1, out = 1, field = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (Holds(axes.in, d)) {
      in *= shape[d];
    } else if (Holds(axes.out, d)) {
      out *= shape[d];
    } else if (!Holds(batch, d)) {
      field *= shape[d];
    }
  }
  return {static_cast<double>(in * field), static_cast<double>(out * field)};
}

// `rest`: the dimensions that are not batch dimensions, at least two.
FanAxes AxesOf(FanOrder order, const std::vector<size_t>& rest) {
  if (order == FanOrder::kOutIn) return {.in = {rest[1]}, .out = {rest[0]}};
  return {.in = {rest[rest.size() - 2]}, .out = {rest.back()}};
}

}  // namespace

std::nullopt_t Fans::Report(std::string message, std::string hint,
                            Diagnostics& diagnostics) const {
  diagnostics.Error(place_, std::move(message), std::move(hint));
  reported_ = true;
  return std::nullopt;
}

std::optional<double> Fans::Get(std::string_view mode,
                                Diagnostics& diagnostics) const {
  const auto report = [&](std::string message, std::string hint) {
    return Report(std::move(message), std::move(hint), diagnostics);
  };
  if (shape_ == nullptr) {
    return report(fmt::format("{} of no tensor", mode), {});
  }
  if (source_->axes) {
    return Combine(mode, FansOf(*shape_, *source_->axes, source_->batch));
  }
  std::vector<size_t> rest;
  for (size_t d = 0; d < shape_->size(); ++d) {
    if (!Holds(source_->batch, d)) rest.push_back(d);
  }
  if (rest.size() < 2) {
    return report(
        fmt::format("`{}` needs {}, which {} does not have", initializer_, mode,
                    rest.empty() ? "a scalar" : "one dimension"),
        rest.empty()
            ? "use an initializer without fans, such as `normal`"
            : "say what the dimension is, such as `in_axis: 0` or `out_axis: "
              "0`");
  }
  const auto fan = [&](FanOrder order) {
    return Combine(mode, FansOf(*shape_, AxesOf(order, rest), source_->batch));
  };
  if (source_->order) return fan(*source_->order);
  const double out_in = fan(FanOrder::kOutIn), in_out = fan(FanOrder::kInOut);
  if (out_in == in_out) return out_in;
  const bool more = rest.size() > 2;
  return report(
      fmt::format("`{}` needs {}, which is {} if the shape is {} and {} if it "
                  "is {}",
                  initializer_, mode, out_in,
                  more ? "[out, in, …]" : "[out, in]", in_out,
                  more ? "[…, in, out]" : "[in, out]"),
      fmt::format("write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, "
                  "Keras){}",
                  more ? ", or say which dimensions they are with `in_axis`, "
                         "`out_axis` and `batch_axis`"
                       : ""));
}

}  // namespace shardinit
