#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kMeanStd[] = {{"mean", 0.0}, {"std", {}}};

}  // namespace

extern const Initializer kNormal = {
    .name = "normal",
    .parameters = kMeanStd,
    .lower = [](Arguments a, Diagnostics& diagnostics) -> std::optional<Distribution> {
      const bool mean = CheckMagnitude("mean", a[0], diagnostics);
      if (!CheckStd(a[1], diagnostics) || !mean) return {};
      return Normal{a[0].value, a[1].value};
    },
};

}  // namespace shardinit
