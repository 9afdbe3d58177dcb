// The syntax tree that ParseExpr makes and Evaluate runs. It is in postfix order, so evaluation is
// one loop over an array and never recurses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/source.h"
#include "expr/functions.h"

namespace shardinit {

struct Step {
  enum class Op : uint8_t {
    kLiteral,
    kName,
    kNegate,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kEqual,
    kNotEqual,
    kCall,
  };
  Op op;
  // These give the subexpression that ends with this step, in Expr::text.
  uint16_t begin = 0;
  uint16_t length = 0;
  uint16_t arguments = 0;  // for kCall
  Value literal{};
  const Function* function = nullptr;
};

class Expr {
 public:
  std::string text;
  Span span;
  std::vector<Step> steps;
  size_t stack = 0;  // The most values that are alive at once.

  // These describe the subexpression that ends with `step`.
  std::string_view TextOf(const Step& step) const {
    return std::string_view(text).substr(step.begin, step.length);
  }
  Span SpanOf(const Step& step) const {
    Span part = span;
    part.column += step.begin;
    part.length = step.length;
    return part;
  }
};

}  // namespace shardinit
