// Defines initializers that have the same parameters as their distributions.
#include <fmt/format.h>

#include <cmath>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kValue[] = {{"value", "the value of every element", {}}};

constexpr Parameter kBounds[] = {{"low", "its smallest value", {}},
                                 {"high", "its upper bound, above `low`", {}}};
constexpr Parameter kKerasBounds[] = {{"minval", "its smallest value", -0.05},
                                      {"maxval", "its upper bound, above `minval`", 0.05}};

std::optional<Distribution> LowerUniform(const Parameter* parameters, Arguments a,
                                         Diagnostics& diagnostics) {
  const std::string_view low = parameters[0].name, high = parameters[1].name;
  if (!CheckMagnitude(low, a[0], diagnostics) || !CheckMagnitude(high, a[1], diagnostics)) {
    return {};
  }
  // The values are f32, so the bounds must differ after rounding to f32.
  const auto least = static_cast<float>(a[0].value);
  const auto most = static_cast<float>(a[1].value);
  if (!(least < most)) {
    return diagnostics.Error(a[1].span,
                             fmt::format("`{}` is {}, but must be above `{}`, which is {}", high,
                                         a[1].value, low, a[0].value),
                             "for equal values use `{constant: {value: …}}`");
  }
  const double span = static_cast<double>(most) - static_cast<double>(least);
  if (!CheckMagnitude(fmt::format("{} - {}", high, low), {span, a[1].span}, diagnostics)) return {};
  return Uniform{a[0].value, a[1].value};
}

constexpr Parameter kMeanStd[] = {{"mean", "its mean", 0.0},
                                  {"std", "its standard deviation, not negative", {}}};
constexpr Parameter kMeanStddev[] = {{"mean", "its mean", 0.0},
                                     {"stddev", "its standard deviation, not negative", 0.05}};

std::optional<Distribution> LowerNormal(std::string_view name, Arguments a,
                                        Diagnostics& diagnostics) {
  const bool mean = CheckMagnitude("mean", a[0], diagnostics);
  if (!CheckScale(name, a[1], diagnostics) || !mean) return {};
  return Normal{a[0].value, a[1].value};
}

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
  return diagnostics.Error(
      a[3].span, fmt::format("`{}` is {}, but must be above `{}`, which is {}", parameters[3].name,
                             a[3].value, parameters[2].name, a[2].value));
}

// Truncates the distribution. The remaining probability must be large enough to draw from.
std::optional<Distribution> Truncate(const TruncatedNormal& cut, const Argument& low,
                                     const Argument& high, Diagnostics& diagnostics) {
  constexpr double kFarthest = 8;
  if (cut.low > kFarthest || cut.high < -kFarthest) {
    const bool above = cut.low > kFarthest;
    return diagnostics.Error(
        above ? low.span : high.span,
        fmt::format("this cut-off is {} standard deviations from the mean, but almost nothing of a "
                    "normal distribution is beyond {}",
                    above ? cut.low : cut.high, above ? kFarthest : -kFarthest));
  }
  if (cut.high - cut.low < 1e-3) {
    return diagnostics.Error(
        high.span,
        fmt::format(
            "the cut-offs are {} standard deviations apart, but must be at least 0.001 apart",
            cut.high - cut.low),
        "use `uniform` for so narrow a range");
  }
  return cut;
}

constexpr Parameter kAxisLength[] = {
    {"axis", "the dimension along which a vector lies, by position or name", {}, {}, true, true},
    {"length", "the length of each vector", 1.0},
};

constexpr Parameter kSparsityStd[] = {
    {"sparsity", "the fraction of each column that is zero, from 0 to 1", {}},
    {"std", "the standard deviation of the others", 0.01},
};

constexpr Initializer kPlainRows[] = {
    {.name = "zeros",
     .description = "all elements 0",
     .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
       return Constant{0};
     }},
    {.name = "ones",
     .description = "all elements 1",
     .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
       return Constant{1};
     }},
    {.name = "constant",
     .description = "all elements `value`",
     .parameters = kValue,
     .lower = [](Arguments a, const Fans&, Diagnostics&) -> std::optional<Distribution> {
       return Constant{a[0].value};
     }},
    // torch.nn.init.uniform_ defaults to [0, 1), jax.nn.initializers.uniform to [0, 0.01), so this
    // has no default.
    {.name = "uniform",
     .description = "a uniform distribution on [low, high)",
     .parameters = kBounds,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) { return LowerUniform(kBounds, a, diagnostics); }},
    // From keras.initializers.RandomUniform.
    {.name = "random_uniform",
     .description = "a uniform distribution on [minval, maxval), as of Keras",
     .parameters = kKerasBounds,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) { return LowerUniform(kKerasBounds, a, diagnostics); }},
    // The std defaults to 1 in torch.nn.init.normal_, to 0.01 in jax.nn.initializers.normal, so
    // this has no default.
    {.name = "normal",
     .description = "a normal distribution",
     .parameters = kMeanStd,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) { return LowerNormal("std", a, diagnostics); }},
    // From keras.initializers.RandomNormal.
    {.name = "random_normal",
     .description = "a normal distribution, as of Keras",
     .parameters = kMeanStddev,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) { return LowerNormal("stddev", a, diagnostics); }},
    // PyTorch and JAX interpret cut-offs differently, so there are two names. This one is
    // jax.nn.initializers.truncated_normal: cut-offs are in standard deviations, and the standard
    // deviation is not corrected.
    {.name = "truncated_normal",
     .description =
         "a normal distribution truncated `low` and `high` standard deviations from its mean",
     .parameters = kSigmas,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) -> std::optional<Distribution> {
       if (!CheckCommon(a, kSigmas, diagnostics)) return {};
       return Truncate({a[0].value, a[1].value, a[2].value, a[3].value}, a[2], a[3], diagnostics);
     }},
    // From torch.nn.init.trunc_normal_: cut-offs are values of the element itself.
    {.name = "trunc_normal",
     .description = "a normal distribution truncated at the values `a` and `b`",
     .parameters = kAbsolute,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) -> std::optional<Distribution> {
       if (!CheckMagnitude("a", a[2], diagnostics) || !CheckMagnitude("b", a[3], diagnostics) ||
           !CheckCommon(a, kAbsolute, diagnostics)) {
         return {};
       }
       const double mean = a[0].value, std = a[1].value;
       if (std == 0) {
         return diagnostics.Error(a[1].span, "`std` is 0, so there is nothing to truncate",
                                  "use `{constant: {value: …}}`");
       }
       return Truncate({mean, std, (a[2].value - mean) / std, (a[3].value - mean) / std}, a[2],
                       a[3], diagnostics);
     }},
};

constexpr Initializer kColumnsRows[] = {
    // From torch.nn.init.sparse_ (Martens 2010).
    {.name = "sparse",
     .description = "zeros at random places of each column, normal elsewhere, as of PyTorch",
     .parameters = kSparsityStd,
     .lower = [](Arguments a, const Fans& fans,
                 Diagnostics& diagnostics) -> std::optional<Distribution> {
       if (!CheckScale("std", a[1], diagnostics)) return {};
       if (!(a[0].value >= 0 && a[0].value <= 1)) {
         return diagnostics.Error(a[0].span,
                                  fmt::format("`sparsity` is {}, but must be from 0 to 1: it is "
                                              "the part of each column that is zero",
                                              a[0].value));
       }
       if (const size_t rank = fans.shape().size(); rank != 2) {
         return fans.Report(
             fmt::format("`sparse` needs 2 dimensions, but this tensor has {}", rank), "",
             diagnostics);
       }
       // Places in a column are distinguished by 32 bits in addition to the drawn ones.
       if (const int64_t rows = fans.shape()[0]; rows > kMaxSparseRows) {
         return fans.Report(
             fmt::format("a `sparse` matrix has at most {} rows, but this one has {}",
                         kMaxSparseRows, rows),
             "make it of several tensors", diagnostics);
       }
       const double zeros = std::ceil(a[0].value * static_cast<double>(fans.shape()[0]));
       return Sparse{a[1].value, static_cast<int64_t>(zeros)};
     }},
    // Produces rows or columns on a sphere, as in nGPT (Loshchilov et al. 2024).
    {.name = "normalized",
     .description = "vectors along `axis`, of one length and any direction",
     .parameters = kAxisLength,
     .lower = [](Arguments a, const Fans&,
                 Diagnostics& diagnostics) -> std::optional<Distribution> {
       if (!CheckScale("length", a[1], diagnostics)) return {};
       if (a[1].value == 0) return Constant{0};
       return Normalized{static_cast<int64_t>(a[0].value), a[1].value};
     }},
};

constexpr Initializer kOfOthersRows[] = {
    // `lower` is null, because lowering needs the file.
    {.name = "file",
     .description = "the elements of a file, row-major and little-endian: its path, relative to "
                    "the spec's folder, and the SHA-256 of its bytes"},
    // `lower` is null, because lowering needs the other tensor.
    {.name = "norms",
     .description = "Euclidean norms of another tensor's elements, over the dimensions that are 1 "
                    "here, as the "
                    "`weight_g` of torch.nn.utils.weight_norm"},
    // `lower` is null, because lowering needs the sources of the spec.
    {.name = "source",
     .description = "the elements of a tensor of one of the spec's sources: of the same path or "
                    "another one, at the same or other indices"},
    {.name = "rows_like",
     .description = "rows around the mean of the rows that a source's tensor has, with a share of "
                    "their standard deviation"},
    {.name = "parts",
     .description = "several initializers that fill a dimension one after another, each for as "
                    "many indices as its source has, and the last one for the rest"},
};

}  // namespace

extern constinit const std::span<const Initializer> kPlain = kPlainRows;
extern constinit const std::span<const Initializer> kColumns = kColumnsRows;
extern constinit const std::span<const Initializer> kOfOthers = kOfOthersRows;

}  // namespace shardinit
