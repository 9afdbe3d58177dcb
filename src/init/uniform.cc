#include <fmt/format.h>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kBounds[] = {{"low", {}}, {"high", {}}};

}  // namespace

extern const Initializer kUniform = {
    .name = "uniform",
    .parameters = kBounds,
    .lower = [](Arguments a, Diagnostics& diagnostics) -> std::optional<Distribution> {
      if (!CheckMagnitude("low", a[0], diagnostics) || !CheckMagnitude("high", a[1], diagnostics)) {
        return {};
      }
      // The values are f32, so the bounds must differ there.
      if (!(static_cast<float>(a[0].value) < static_cast<float>(a[1].value))) {
        diagnostics.Error(a[1].span,
                          fmt::format("`high` is {}, but must be above `low`, which is {}", a[1].value,
                                      a[0].value),
                          "for equal values use `{constant: {value: …}}`");
        return {};
      }
      const double span = static_cast<double>(static_cast<float>(a[1].value)) -
                          static_cast<double>(static_cast<float>(a[0].value));
      if (!CheckMagnitude("high - low", {span, a[1].span}, diagnostics)) return {};
      return Uniform{a[0].value, a[1].value};
    },
};

}  // namespace shardinit
