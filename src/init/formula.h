// Computes the formula of an initializer from its text, so that `explain` shows exactly the
// computed formula.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "expr/expr.h"
#include "init/fans.h"

namespace shardinit {

class Formula {
 public:
  struct Name {
    std::string_view name;
    double value;
    std::string_view shown = name;
  };

  // The formula is `name = text`, such as `std = gain / sqrt(fan)`.
  Formula(std::string_view name, std::string_view text);

  // Computes the formula with these values for its names. Each operation is one f64 operation, in
  // the order of the text. `fans` records the computation.
  double operator()(std::initializer_list<Name> names, const Fans& fans) const;

 private:
  std::string name_;
  ExprPtr expr_;
};

}  // namespace shardinit
