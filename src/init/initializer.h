// Names that a spec may use under `init`. This set is open: each lowers to a
// Distribution, and everything about it is in its row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "init/distribution.h"
#include "tensor/box.h"

namespace shardinit {

// One argument that an initializer accepts. Parsing, errors and the manual
// follow from these.
struct Parameter {
  std::string_view name;
  std::optional<double> default_value;  // None: the spec must give it.
};

struct Argument {
  double value;
  Span span;  // Where the user wrote it, or the initializer's name.
};
using Arguments = std::span<const Argument>;  // In the order of `parameters`.

struct Initializer {
  std::string_view name;
  std::span<const Parameter> parameters;
  // Reports arguments that make no distribution, and then returns nothing.
  std::optional<Distribution> (*lower)(Arguments arguments, Diagnostics& diagnostics);
  // Instead of `lower`: the expression over elements that gives the values, with
  // the parameters as names. `span` is that of the initializer's name.
  std::optional<std::string> (*formula)(Arguments arguments, const Shape& shape, Span span,
                                        Diagnostics& diagnostics) = nullptr;
};

std::span<const Initializer* const> Initializers();
const Initializer* FindInitializer(std::string_view name);
std::vector<std::string> InitializerNames();

// Shared by the initializers that scale a random number: magnitudes for which
// every intermediate value of the samplers is a normal f32 number.
bool CheckMagnitude(std::string_view name, const Argument& argument, Diagnostics& diagnostics);
// As above, and not negative.
bool CheckStd(const Argument& argument, Diagnostics& diagnostics);

}  // namespace shardinit
