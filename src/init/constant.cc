#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kValue[] = {{"value", {}}};

}  // namespace

extern const Initializer kZeros = {
    .name = "zeros",
    .parameters = {},
    .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{0};
    },
};

extern const Initializer kOnes = {
    .name = "ones",
    .parameters = {},
    .lower = [](Arguments, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{1};
    },
};

extern const Initializer kConstant = {
    .name = "constant",
    .parameters = kValue,
    .lower = [](Arguments a, const Fans&, Diagnostics&) -> std::optional<Distribution> {
      return Constant{a[0].value};
    },
};

}  // namespace shardinit
