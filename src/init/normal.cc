#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kMeanStd[] = {{"mean", "its mean", 0.0},
                                  {"std", "its standard deviation, not negative", {}}};
constexpr Parameter kMeanStddev[] = {{"mean", "its mean", 0.0},
                                     {"stddev", "its standard deviation, not negative", 0.05}};

std::optional<Distribution> Lower(std::string_view name, Arguments a, Diagnostics& diagnostics) {
  const bool mean = CheckMagnitude("mean", a[0], diagnostics);
  if (!CheckScale(name, a[1], diagnostics) || !mean) return {};
  return Normal{a[0].value, a[1].value};
}

}  // namespace

// torch.nn.init.normal_ has a default std of 1, jax.nn.initializers.normal one of 0.01, so this has
// none.
extern const Initializer kNormal = {
    .name = "normal",
    .description = "a normal distribution",
    .parameters = kMeanStd,
    .lower = [](Arguments a, const Fans&,
                Diagnostics& diagnostics) { return Lower("std", a, diagnostics); },
};

// This is keras.initializers.RandomNormal.
extern const Initializer kRandomNormal = {
    .name = "random_normal",
    .description = "a normal distribution, as of Keras",
    .parameters = kMeanStddev,
    .lower = [](Arguments a, const Fans&,
                Diagnostics& diagnostics) { return Lower("stddev", a, diagnostics); },
};

}  // namespace shardinit
