#include <fmt/format.h>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kAxisLength[] = {
    {"axis", "the dimension along which a vector lies, by position or name", {}, {}, true, true},
    {"length", "the length of each vector", 1.0},
};

}  // namespace

// This makes rows or columns on a sphere, as in nGPT (Loshchilov et al. 2024).
extern const Initializer kNormalized = {
    .name = "normalized",
    .description = "vectors along `axis`, of one length and any direction",
    .parameters = kAxisLength,
    .lower = [](Arguments a, const Fans&, Diagnostics& diagnostics) -> std::optional<Distribution> {
      if (!CheckScale("length", a[1], diagnostics)) return {};
      if (a[1].value == 0) return Constant{0};
      return Normalized{static_cast<int64_t>(a[0].value), a[1].value};
    },
};

}  // namespace shardinit
