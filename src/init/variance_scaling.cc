// Implements the initializers of JAX and Keras whose variance is scale / fan, and their named
// cases. Their *_normal are truncated, unlike torch.nn.init's in kaiming_xavier.cc.
#include <array>

#include "base/error.h"
#include "init/formula.h"
#include "init/initializer.h"

namespace shardinit {
namespace {

struct Scaling {
  double scale, fan;
  std::string_view mode;
};

double Compute(const Formula& formula, const Scaling& s, const Fans& fans) {
  return formula({{"scale", s.scale}, {"fan", s.fan, s.mode}}, fans);
}

using Shaped = std::optional<Distribution> (*)(const Scaling& scaling, Span cause, const Fans& fans,
                                               Diagnostics& diagnostics);

// The divisor is the standard deviation of the standard normal distribution truncated at -2 and 2,
// as both systems write it: sqrt(1 - 4 φ(2) / (2 Φ(2) - 1)).
std::optional<Distribution> TruncatedOf(const Scaling& scaling, Span cause, const Fans& fans,
                                        Diagnostics& diagnostics) {
  static const Formula kStd("std", "sqrt(scale / fan) / 0.87962566103423978");
  const double std = Compute(kStd, scaling, fans);
  if (!CheckScale("std", {std, cause}, diagnostics)) return {};
  return TruncatedNormal{0, std, -2, 2};
}

std::optional<Distribution> UntruncatedOf(const Scaling& scaling, Span cause, const Fans& fans,
                                          Diagnostics& diagnostics) {
  static const Formula kStd("std", "sqrt(scale / fan)");
  return NormalOf(Compute(kStd, scaling, fans), cause, diagnostics);
}

std::optional<Distribution> EvenOf(const Scaling& scaling, Span cause, const Fans& fans,
                                   Diagnostics& diagnostics) {
  static const Formula kBound("bound", "sqrt(3 * (scale / fan))");
  return UniformOf(Compute(kBound, scaling, fans), cause, fans, diagnostics);
}

struct Form {
  std::string_view name;
  Shaped of;
};

// JAX's `normal` is Keras's `untruncated_normal`. (For old specs, Keras reads `normal` as
// `truncated_normal`; here it has JAX's meaning.)
constexpr Form kForms[] = {
    {"truncated_normal", TruncatedOf},
    {"untruncated_normal", UntruncatedOf},
    {"normal", UntruncatedOf},
    {"uniform", EvenOf},
};

constexpr auto kFormNames = [] {
  std::array<std::string_view, std::size(kForms)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kForms[i].name;
  return names;
}();

// These are Keras's defaults. JAX has none.
constexpr Parameter kScaling[] = {
    {"scale", "a factor of the variance, not negative", 1.0},
    {"mode", "the fan that divides the variance", "fan_in", kFanModes},
    {"distribution",
     "its form; `truncated_normal` is truncated at two standard deviations and corrected for that; "
     "`normal` and `untruncated_normal` are the same",
     "truncated_normal", kFormNames},
};

std::optional<Distribution> Scaled(double scale, std::string_view mode, Shaped form, Span cause,
                                   const Fans& fans, Diagnostics& diagnostics) {
  const auto fan = fans.Get(mode, diagnostics);
  if (!fan) return {};
  return form({scale, *fan, mode}, cause, fans, diagnostics);
}

template <int kScale, bool kAverage, Shaped kForm>
std::optional<Distribution> Case(Arguments, const Fans& fans, Diagnostics& diagnostics) {
  return Scaled(kScale, kAverage ? "fan_avg" : "fan_in", kForm, {}, fans, diagnostics);
}

constexpr Initializer kVarianceScalingRows[] = {
    // From jax.nn.initializers.variance_scaling and keras.initializers.VarianceScaling.
    {.name = "variance_scaling",
     .description = "variance scale / fan, as of JAX and Keras",
     .parameters = kScaling,
     .lower = [](Arguments a, const Fans& fans,
                 Diagnostics& diagnostics) -> std::optional<Distribution> {
       if (!CheckScale("scale", a[0], diagnostics)) return {};
       for (const Form& form : kForms) {
         if (form.name != a[2].word) continue;
         return Scaled(a[0].value, a[1].word, form.of, a[0].span, fans, diagnostics);
       }
       throw Bug("a distribution of the table");
     }},
    // Variance 2 / (fan_in + fan_out), from equations 12 and 16 of Glorot and Bengio 2010.
    {.name = "glorot_uniform",
     .description = "uniform with variance 2 / (fan_in + fan_out), as of JAX and Keras",
     .lower = Case<1, true, EvenOf>},
    {.name = "glorot_normal",
     .description = "truncated normal with variance 2 / (fan_in + fan_out), as of JAX and Keras",
     .lower = Case<1, true, TruncatedOf>},
    // Variance 2 / fan_in, from equation 10 of He et al. 2015.
    {.name = "he_uniform",
     .description = "uniform with variance 2 / fan_in, as of JAX and Keras",
     .lower = Case<2, false, EvenOf>},
    {.name = "he_normal",
     .description = "truncated normal with variance 2 / fan_in, as of JAX and Keras",
     .lower = Case<2, false, TruncatedOf>},
    // Variance 1 / fan_in, from equation 16 of LeCun et al. 1998 (Efficient BackProp).
    {.name = "lecun_uniform",
     .description = "uniform with variance 1 / fan_in, as of JAX and Keras",
     .lower = Case<1, false, EvenOf>},
    {.name = "lecun_normal",
     .description = "truncated normal with variance 1 / fan_in, as of JAX and Keras",
     .lower = Case<1, false, TruncatedOf>},
};

}  // namespace

extern constinit const std::span<const Initializer> kVarianceScaling = kVarianceScalingRows;

}  // namespace shardinit
