#include <fmt/format.h>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kBounds[] = {{"low", "its smallest value", {}},
                                 {"high", "its upper bound, above `low`", {}}};
constexpr Parameter kKerasBounds[] = {{"minval", "its smallest value", -0.05},
                                      {"maxval", "its upper bound, above `minval`", 0.05}};

std::optional<Distribution> Lower(const Parameter* parameters, Arguments a,
                                  Diagnostics& diagnostics) {
  const std::string_view low = parameters[0].name, high = parameters[1].name;
  if (!CheckMagnitude(low, a[0], diagnostics) || !CheckMagnitude(high, a[1], diagnostics)) {
    return {};
  }
  // The values are f32, so the bounds must differ as f32.
  const auto least = static_cast<float>(a[0].value);
  const auto most = static_cast<float>(a[1].value);
  if (!(least < most)) {
    diagnostics.Error(a[1].span,
                      fmt::format("`{}` is {}, but must be above `{}`, which is {}", high,
                                  a[1].value, low, a[0].value),
                      "for equal values use `{constant: {value: …}}`");
    return {};
  }
  const double span = static_cast<double>(most) - static_cast<double>(least);
  if (!CheckMagnitude(fmt::format("{} - {}", high, low), {span, a[1].span}, diagnostics)) {
    return {};
  }
  return Uniform{a[0].value, a[1].value};
}

}  // namespace

// torch.nn.init.uniform_ draws from [0, 1) by default, jax.nn.initializers.uniform from [0, 0.01),
// so this has no default.
extern const Initializer kUniform = {
    .name = "uniform",
    .description = "a uniform distribution on [low, high)",
    .parameters = kBounds,
    .lower = [](Arguments a, const Fans&,
                Diagnostics& diagnostics) { return Lower(kBounds, a, diagnostics); },
};

// This is keras.initializers.RandomUniform.
extern const Initializer kRandomUniform = {
    .name = "random_uniform",
    .description = "a uniform distribution on [minval, maxval), as of Keras",
    .parameters = kKerasBounds,
    .lower = [](Arguments a, const Fans&,
                Diagnostics& diagnostics) { return Lower(kKerasBounds, a, diagnostics); },
};

}  // namespace shardinit
