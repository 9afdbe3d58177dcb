#include <fmt/format.h>

#include "init/initializer.h"
#include "rng/sampler.h"

namespace shardinit {

extern const Initializer kZeros, kOnes, kConstant, kUniform, kNormal, kTruncatedNormal, kTruncNormal;
extern const Initializer kExpr, kEye, kIdentity, kDirac, kArange;

std::span<const Initializer* const> Initializers() {
  static constexpr const Initializer* kInitializers[] = {
      &kZeros,
      &kOnes,
      &kConstant,
      &kUniform,
      &kNormal,
      &kTruncatedNormal,
      &kTruncNormal,
      &kExpr,
      &kEye,
      &kIdentity,
      &kDirac,
      &kArange,
  };
  return kInitializers;
}

const Initializer* FindInitializer(std::string_view name) {
  for (const Initializer* initializer : Initializers()) {
    if (initializer->name == name) return initializer;
  }
  return nullptr;
}

std::vector<std::string> InitializerNames() {
  std::vector<std::string> names;
  for (const Initializer* initializer : Initializers()) names.emplace_back(initializer->name);
  return names;
}

bool CheckMagnitude(std::string_view name, const Argument& argument, Diagnostics& diagnostics) {
  if (IsValidScale(argument.value)) return true;
  diagnostics.Error(argument.span,
                    fmt::format("`{}` is {}, but its magnitude must be 0 or from 2^-80 "
                                "(8.3e-25) to 2^100 (1.3e30)",
                                name, argument.value),
                    "outside that range f32 arithmetic would not be exact on every machine");
  return false;
}

bool CheckStd(const Argument& argument, Diagnostics& diagnostics) {
  if (argument.value < 0) {
    diagnostics.Error(argument.span, fmt::format("`std` is {}, but must not be negative", argument.value));
    return false;
  }
  return CheckMagnitude("std", argument, diagnostics);
}

}  // namespace shardinit
