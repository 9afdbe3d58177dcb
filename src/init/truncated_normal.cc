// PyTorch and JAX give cut-offs different meanings, so there are two names.
#include <fmt/format.h>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kSigmas[] = {
    {"mean", "the mean before truncation", 0.0},
    {"std", "the standard deviation before truncation", {}},
    {"low", "the lower cut-off, in standard deviations", -2.0},
    {"high", "the upper cut-off, in standard deviations", 2.0},
};
constexpr Parameter kAbsolute[] = {
    {"mean", "the mean before truncation", 0.0},
    {"std", "the standard deviation before truncation", {}},
    {"a", "the smallest value", -2.0},
    {"b", "the largest value", 2.0},
};

bool CheckCommon(Arguments a, const Parameter* parameters, Diagnostics& diagnostics) {
  const bool mean = CheckMagnitude("mean", a[0], diagnostics);
  if (!CheckScale("std", a[1], diagnostics) || !mean) return false;
  if (a[2].value < a[3].value) return true;
  diagnostics.Error(
      a[3].span, fmt::format("`{}` is {}, but must be above `{}`, which is {}", parameters[3].name,
                             a[3].value, parameters[2].name, a[2].value));
  return false;
}

// Cuts the distribution. What is left of it must be large enough to draw from.
std::optional<Distribution> Cut(const TruncatedNormal& cut, const Argument& low,
                                const Argument& high, Diagnostics& diagnostics) {
  constexpr double kFarthest = 8;
  if (cut.low > kFarthest || cut.high < -kFarthest) {
    const bool above = cut.low > kFarthest;
    diagnostics.Error(above ? low.span : high.span,
                      fmt::format("this cut-off is {} standard deviations from the mean, but "
                                  "nothing of a normal distribution is left beyond {}",
                                  above ? cut.low : cut.high, above ? kFarthest : -kFarthest));
    return {};
  }
  if (cut.high - cut.low < 1e-3) {
    diagnostics.Error(high.span,
                      fmt::format("the cut-offs are {} standard deviations apart, but must be at "
                                  "least 0.001 apart",
                                  cut.high - cut.low),
                      "use `uniform` for so narrow a range");
    return {};
  }
  return cut;
}

}  // namespace

// This is jax.nn.initializers.truncated_normal: cut-offs are in standard deviations, and the
// standard deviation is not corrected.
extern const Initializer kTruncatedNormal = {
    .name = "truncated_normal",
    .description =
        "a normal distribution truncated `low` and `high` standard deviations from its mean",
    .parameters = kSigmas,
    .lower = [](Arguments a, const Fans&, Diagnostics& diagnostics) -> std::optional<Distribution> {
      if (!CheckCommon(a, kSigmas, diagnostics)) return {};
      return Cut({a[0].value, a[1].value, a[2].value, a[3].value}, a[2], a[3], diagnostics);
    },
};

// This is torch.nn.init.trunc_normal_: cut-offs are values of the element itself.
extern const Initializer kTruncNormal = {
    .name = "trunc_normal",
    .description = "a normal distribution truncated at the values `a` and `b`",
    .parameters = kAbsolute,
    .lower = [](Arguments a, const Fans&, Diagnostics& diagnostics) -> std::optional<Distribution> {
      if (!CheckMagnitude("a", a[2], diagnostics) || !CheckMagnitude("b", a[3], diagnostics) ||
          !CheckCommon(a, kAbsolute, diagnostics)) {
        return {};
      }
      const double mean = a[0].value, std = a[1].value;
      if (std == 0) {
        diagnostics.Error(a[1].span, "`std` is 0, which leaves nothing to truncate",
                          "use `{constant: {value: …}}`");
        return {};
      }
      return Cut({mean, std, (a[2].value - mean) / std, (a[3].value - mean) / std}, a[2], a[3],
                 diagnostics);
    },
};

}  // namespace shardinit
