// Implements the uniform and untruncated normal initializers of torch.nn.init. Standard deviations
// are computed in PyTorch's order of operations.
#include <fmt/format.h>

#include <span>

#include "init/formula.h"
#include "init/gain.h"
#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr auto kModes = std::span(kFanModes).first<2>();  // the fans themselves

constexpr Parameter kXavier[] = {
    {"gain",
     "a factor of the standard deviation, not negative; or a nonlinearity, for its gain in PyTorch",
     1.0, kNonlinearities, true},
};
constexpr Parameter kKaiming[] = {
    {"a", "the slope of `leaky_relu` for negative inputs", 0.0},
    {"mode", "the fan that divides the variance", "fan_in", kModes},
    {"nonlinearity", "which gain", "leaky_relu", kNonlinearities},
};

// Equation 12 of Glorot and Bengio 2010 uses the mean of both fans. torch's xavier_normal_ uses std
// = gain * sqrt(2 / (fan_in + fan_out)).
std::optional<double> XavierStd(Arguments a, const Fans& fans, Diagnostics& diagnostics) {
  if (a[0].word.empty() && !CheckScale("gain", a[0], diagnostics)) return {};
  const auto average = fans.Get("fan_avg", diagnostics);
  if (!average) return {};
  const double gain = GainOf(a[0], fans);
  // 1 / fan_avg equals 2 / (fan_in + fan_out), because halving is exact.
  static const Formula kStd("std", "gain * sqrt(1 / fan_avg)");
  return kStd({{"gain", gain}, {"fan_avg", *average}}, fans);
}

// From equations 10, 14 and 15 of He et al. 2015. torch's kaiming_normal_ uses std = gain /
// sqrt(fan).
std::optional<double> KaimingStd(Arguments a, const Fans& fans, Diagnostics& diagnostics) {
  if (!CheckMagnitude("a", a[0], diagnostics)) return {};
  if (a[0].value != 0 && a[2].word != "leaky_relu") {
    return diagnostics.Error(
        a[0].span,
        fmt::format("`a` is {}, but only `leaky_relu` has a slope, and the nonlinearity is `{}`",
                    a[0].value, a[2].word));
  }
  const auto fan = fans.Get(a[1].word, diagnostics);
  if (!fan) return {};
  static const Formula kStd("std", "gain / sqrt(fan)");
  return kStd({{"gain", GainOf(a[2].word, a[0].value, fans)}, {"fan", *fan, a[1].word}}, fans);
}

// These lower to a distribution with the standard deviation that `kStd` returns.
using StdOf = std::optional<double> (*)(Arguments a, const Fans& fans, Diagnostics& diagnostics);

template <StdOf kStd>
std::optional<Distribution> AsNormal(Arguments a, const Fans& fans, Diagnostics& diagnostics) {
  const auto std = kStd(a, fans, diagnostics);
  if (!std) return {};
  return NormalOf(*std, a[0].span, diagnostics);
}

template <StdOf kStd>
std::optional<Distribution> AsUniform(Arguments a, const Fans& fans, Diagnostics& diagnostics) {
  static const Formula kBound("bound", "sqrt(3) * std");
  const auto std = kStd(a, fans, diagnostics);
  if (!std) return {};
  return UniformOf(kBound({{"std", *std}}, fans), a[0].span, fans, diagnostics);
}

constexpr Initializer kKaimingXavierRows[] = {
    {.name = "xavier_uniform",
     .description =
         "uniform with the standard deviation gain * sqrt(2 / (fan_in + fan_out)), as of PyTorch",
     .parameters = kXavier,
     .lower = AsUniform<XavierStd>},
    {.name = "xavier_normal",
     .description =
         "normal with the standard deviation gain * sqrt(2 / (fan_in + fan_out)), as of PyTorch",
     .parameters = kXavier,
     .lower = AsNormal<XavierStd>},
    {.name = "kaiming_uniform",
     .description = "uniform with the standard deviation gain / sqrt(fan), as of PyTorch",
     .parameters = kKaiming,
     .lower = AsUniform<KaimingStd>},
    {.name = "kaiming_normal",
     .description = "normal with the standard deviation gain / sqrt(fan), as of PyTorch",
     .parameters = kKaiming,
     .lower = AsNormal<KaimingStd>},
};

}  // namespace

extern constinit const std::span<const Initializer> kKaimingXavier = kKaimingXavierRows;

}  // namespace shardinit
