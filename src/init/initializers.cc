#include <fmt/format.h>

#include "base/table.h"
#include "init/initializer.h"
#include "rng/sampler.h"

namespace shardinit {

extern const std::span<const Initializer> kPlain, kKaimingXavier, kVarianceScaling, kOrthogonals,
    kColumns, kOfIndex, kOfOthers;

std::span<const Initializer* const> Initializers() {
  static const std::vector<const Initializer*> all = [] {
    std::vector<const Initializer*> rows;
    for (const auto& table :
         {kPlain, kKaimingXavier, kVarianceScaling, kOrthogonals, kColumns, kOfIndex, kOfOthers}) {
      for (const Initializer& row : table) rows.push_back(&row);
    }
    return rows;
  }();
  return all;
}

const Initializer* FindInitializer(std::string_view name) {
  return FindNamed(Initializers(), name);
}

std::vector<std::string> InitializerNames() { return NamesOf(Initializers()); }

bool CheckMagnitude(std::string_view name, const Argument& argument, Diagnostics& diagnostics) {
  if (IsValidScale(argument.value)) return true;
  return diagnostics.Error(
      argument.span,
      fmt::format(
          "`{}` is {}, but its magnitude must be 0 or from 2^-80 (8.3e-25) to 2^100 (1.3e30)", name,
          argument.value),
      "outside that range f32 arithmetic would not be exact on every machine");
}

bool CheckNotNegative(std::string_view name, const Argument& argument, Diagnostics& diagnostics) {
  if (argument.value >= 0) return true;
  return diagnostics.Error(
      argument.span, fmt::format("`{}` is {}, but must not be negative", name, argument.value));
}

bool CheckScale(std::string_view name, const Argument& argument, Diagnostics& diagnostics) {
  return CheckNotNegative(name, argument, diagnostics) &&
         CheckMagnitude(name, argument, diagnostics);
}

std::optional<Distribution> NormalOf(double std, Span cause, Diagnostics& diagnostics) {
  if (!CheckScale("std", {std, cause}, diagnostics)) return {};
  return Normal{0, std};
}

std::optional<Distribution> UniformOf(double bound, Span cause, const Fans& fans,
                                      Diagnostics& diagnostics) {
  // The distance between the bounds is also a scale of the sampler.
  if (!CheckScale("bound", {bound, cause}, diagnostics) ||
      !CheckMagnitude("2 * bound", {2 * bound, cause}, diagnostics)) {
    return {};
  }
  if (bound == 0 && fans.draws_zeros()) {
    return diagnostics.Error(
        cause, "its bounds are 0, but PyTorch draws numbers even for zeros",
        "use `zeros`, and give the next tensor that is drawn `key: {torch: {skip: N}}`, where N is "
        "the number of elements");
  }
  if (bound == 0) return Constant{0};
  return Uniform{-bound, bound};
}

}  // namespace shardinit
