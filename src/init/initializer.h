// Lists the initializers that a spec may name under `init`. The list is open: each initializer
// lowers to a Distribution, and its row contains everything about it.
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

// One argument that an initializer accepts. Parsing, errors and the schema follow from its
// parameters.
struct Parameter {
  std::string_view name;
  std::string_view description;  // a phrase, for editors
  // A number or one of `words`. Without a default, the spec must give the argument.
  std::variant<std::monostate, double, std::string_view> default_value;
  std::span<const std::string_view> words = {};  // the allowed words
  bool number = words.empty();                   // whether a number is allowed
  bool dimension = false;  // The number is a dimension of the tensor; the spec may name its axis.
};

struct Argument {
  double value;                // A dimension counts from 0.
  Span span;                   // where the user wrote it, or the initializer's name
  std::string_view word = {};  // one of the parameter's words; empty for a number
};
using Arguments = std::span<const Argument>;  // in the order of `parameters`

struct Initializer {
  std::string_view name;
  std::string_view description;
  std::span<const Parameter> parameters = {};
  // Returns nothing, and reports why, if the arguments do not define a distribution.
  std::optional<Distribution> (*lower)(Arguments arguments, const Fans& fans,
                                       Diagnostics& diagnostics) = nullptr;
  // Replaces `lower`. Returns the expression over elements that computes the values, with the
  // parameters as names. `span` is the span of the initializer's name.
  std::optional<std::string> (*formula)(Arguments arguments, const Shape& shape, Span span,
                                        Diagnostics& diagnostics) = nullptr;
};

std::span<const Initializer* const> Initializers();
const Initializer* FindInitializer(std::string_view name);
std::vector<std::string> InitializerNames();

// Checks that scaling initializers share. With magnitudes that pass, every intermediate value of
// the samplers is a normal f32 number.
bool CheckMagnitude(std::string_view name, const Argument& argument, Diagnostics& diagnostics);
bool CheckNotNegative(std::string_view name, const Argument& argument, Diagnostics& diagnostics);
bool CheckScale(std::string_view name, const Argument& argument, Diagnostics& diagnostics);

// Returns a normal distribution with mean 0. `cause` is the argument that decides the scale.
std::optional<Distribution> NormalOf(double std, Span cause, Diagnostics& diagnostics);
// Returns a uniform distribution on [-bound, bound), or zeros for a bound of 0.
std::optional<Distribution> UniformOf(double bound, Span cause, const Fans& fans,
                                      Diagnostics& diagnostics);

}  // namespace shardinit
