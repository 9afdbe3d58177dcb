// Names that a spec may use under `init`. This set is open: each lowers to a
// Distribution, and everything about it is in its row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/diagnostics.h"
#include "init/distribution.h"
#include "init/fans.h"
#include "tensor/box.h"

namespace shardinit {

// One argument that an initializer accepts. Parsing, errors and the schema
// follow from these.
struct Parameter {
  std::string_view name;
  std::string_view description;  // For editors: a phrase.
  // A number or one of `words`. None: the spec must give it.
  std::variant<std::monostate, double, std::string_view> default_value;
  std::span<const std::string_view> words = {};  // That it may be.
  bool number = words.empty();                   // Whether it may be a number.
  bool dimension = false;  // The number is a dimension of the tensor, or its axis' name.
};

struct Argument {
  double value;                // A dimension counts from 0 here.
  Span span;                   // Where the user wrote it, or the initializer's name.
  std::string_view word = {};  // One of the parameter's; empty: a number.
};
using Arguments = std::span<const Argument>;  // In the order of `parameters`.

struct Initializer {
  std::string_view name;
  std::string_view description;
  std::span<const Parameter> parameters;
  // Reports arguments that make no distribution, and then returns nothing.
  std::optional<Distribution> (*lower)(Arguments arguments, const Fans& fans,
                                       Diagnostics& diagnostics);
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
bool CheckNotNegative(std::string_view name, const Argument& argument, Diagnostics& diagnostics);
// Both.
bool CheckScale(std::string_view name, const Argument& argument, Diagnostics& diagnostics);

// Around 0. `cause` is the argument that decides the scale.
std::optional<Distribution> NormalOf(double std, Span cause, Diagnostics& diagnostics);
// On [-bound, bound); a bound of 0 leaves zeros.
std::optional<Distribution> UniformOf(double bound, Span cause, Diagnostics& diagnostics);

}  // namespace shardinit
