// A formula of an initializer. It is computed from its text, so that what
// `explain` shows is what was computed.
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

  // `name = text`, such as `std = gain / sqrt(fan)`.
  Formula(std::string_view name, std::string_view text);

  // With these values for the names in the text. Each operation is one f64
  // operation, in the order of the text. `fans` hears of it.
  double operator()(std::initializer_list<Name> names, const Fans& fans) const;

 private:
  std::string name_;
  ExprPtr expr_;
};

}  // namespace shardinit
