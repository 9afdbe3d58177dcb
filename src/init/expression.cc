// Values that are functions of the index: each row gives the expression that
// makes them, in which its parameters are names.
#include <fmt/format.h>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kGain[] = {{"gain", 1.0}};
constexpr Parameter kGroups[] = {{"groups", 1.0}};
constexpr Parameter kStartStep[] = {{"start", 0.0}, {"step", 1.0}};

std::optional<std::string> Diagonal(Arguments, const Shape& shape, Span span,
                                    Diagnostics& diagnostics) {
  if (shape.size() == 2) return "where(row == col, gain, 0)";
  diagnostics.Error(span, fmt::format("an identity matrix has 2 dimensions, but this tensor has {}",
                                      shape.size()));
  return {};
}

// torch.nn.init.dirac_: in each group, output channel d passes input channel d.
std::optional<std::string> Dirac(Arguments a, const Shape& shape, Span span,
                                 Diagnostics& diagnostics) {
  if (shape.size() < 3 || shape.size() > 5) {
    diagnostics.Error(span, fmt::format("`dirac` needs the 3 to 5 dimensions of a convolution's "
                                        "weight, but this tensor has {}",
                                        shape.size()));
    return {};
  }
  const double groups = a[0].value;
  const auto whole = static_cast<int64_t>(groups >= 1 && groups <= 0x1p53 ? groups : 0);
  if (whole == 0 || static_cast<double>(whole) != groups || shape[0] % whole != 0) {
    diagnostics.Error(a[0].span, fmt::format("`groups` is {}, but must divide dimension 0, which is {}",
                                             groups, shape[0]));
    return {};
  }
  std::string text = "(mod(i0, n0 / groups) == i1)";
  for (size_t d = 2; d < shape.size(); ++d) text += fmt::format(" * (i{0} == floor(n{0} / 2))", d);
  return text;
}

}  // namespace

// Lowered where the spec's own expression is at hand.
extern const Initializer kExpr = {
    .name = "expr", .parameters = {}, .lower = nullptr};

extern const Initializer kEye = {
    .name = "eye", .parameters = kGain, .lower = nullptr, .formula = Diagonal};
extern const Initializer kIdentity = {
    .name = "identity", .parameters = kGain, .lower = nullptr, .formula = Diagonal};
extern const Initializer kDirac = {
    .name = "dirac", .parameters = kGroups, .lower = nullptr, .formula = Dirac};

extern const Initializer kArange = {
    .name = "arange",
    .parameters = kStartStep,
    .lower = nullptr,
    .formula = [](Arguments, const Shape&, Span, Diagnostics&) -> std::optional<std::string> {
      return "start + step * index";
    },
};

}  // namespace shardinit
