// What an initializer lowers to. This set is closed: each alternative has its
// operations in shardinit-values(7).
#pragma once

#include <memory>
#include <variant>

#include "expr/program.h"

namespace shardinit {

struct Constant {
  double value;
  bool operator==(const Constant&) const = default;
};

struct Uniform {  // On [low, high).
  double low, high;
  bool operator==(const Uniform&) const = default;
};

struct Normal {
  double mean, std;
  bool operator==(const Normal&) const = default;
};

struct TruncatedNormal {  // low and high in standard deviations from the mean.
  double mean, std, low, high;
  bool operator==(const TruncatedNormal&) const = default;
};

struct Expression {  // A function of the element's index and of draws.
  std::shared_ptr<const Program> program;  // Many tensors may share one.
  bool operator==(const Expression& other) const { return program->text == other.program->text; }
};

using Distribution = std::variant<Constant, Uniform, Normal, TruncatedNormal, Expression>;

// No element is farther from 0: a normal sample is never 7 standard deviations
// from its mean (shardinit-values(7)). 0 for an expression, whose elements are
// checked one by one when they are made.
double LargestMagnitude(const Distribution& distribution);

// Whether elements are drawn, and so need a stream of random words of their own.
inline bool IsRandom(const Distribution& d) {
  if (const auto* expression = std::get_if<Expression>(&d)) {
    return !expression->program->draws.empty();
  }
  return !std::holds_alternative<Constant>(d);
}

}  // namespace shardinit
