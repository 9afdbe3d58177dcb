// Defines the syntax tree that ParseExpr builds and Evaluate runs. It is in postfix order, so
// evaluation is one loop over an array and never recurses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/source.h"
#include "expr/functions.h"

namespace shardinit {

// How tightly an operator binds.
enum Binding { kOr = 1, kAnd, kNot, kComparison, kSum, kProduct, kUnary, kAtom };

// A binary operator: a row of the table in parse.cc. `power` distinguishes `and` from `or`. Their
// `op` combines two truth values, each 1 or 0.
struct Operator {
  std::string_view text;
  Binding power;
  ElementOp op;
};

struct Step {
  // kDecide is between the operands of `and` and `or`: if the first one settles the result, the
  // second is not computed. For elements, both are computed.
  //
  // kIndex takes an item of a list, whose name begins the subexpression. kLength counts the items.
  enum class Op : uint8_t {
    kLiteral,
    kText,
    kName,
    kIndex,
    kLength,
    kNegate,
    kNot,
    kDecide,
    kBinary,
    kCall
  };
  Op op;
  // The range in Expr::text of the subexpression that ends with this step.
  uint16_t begin = 0;
  uint16_t length = 0;
  // For a kCall, the number of arguments. For a kDecide, the number of steps that it may skip. For
  // a kIndex or kLength, the place of the list's name after `begin`.
  uint16_t arguments = 0;
  Value literal{};
  const Operator* binary = nullptr;
  const Function* function = nullptr;
};

// Returns whether the step does not use the values of other steps.
inline bool IsAtom(const Step& step) {
  return step.op == Step::Op::kText || step.op == Step::Op::kName || step.op == Step::Op::kIndex;
}

class Expr {
 public:
  std::string text;
  Span span;
  std::vector<Step> steps;
  size_t stack = 0;  // the largest number of values that are alive at once

  // These describe the subexpression that ends with `step`.
  std::string_view TextOf(const Step& step) const {
    return std::string_view(text).substr(step.begin, step.length);
  }
  // Returns the name that the step looks up, without surrounding text, or the text between quotes.
  std::string_view NameOf(const Step& step) const {
    const std::string_view whole = TextOf(step);
    if (step.op == Step::Op::kText) return whole.substr(1, whole.size() - 2);
    if (step.op == Step::Op::kName) return whole;
    const std::string_view rest = whole.substr(step.arguments);
    return rest.substr(0, rest.find_first_of(" \t[)"));
  }
  Span SpanOf(const Step& step) const {
    Span part = span;
    part.column += step.begin;
    part.length = step.length;
    return part;
  }
};

}  // namespace shardinit
