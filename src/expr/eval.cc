#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/checked_math.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "expr/expr.h"
#include "expr/program.h"
#include "expr/tree.h"

namespace shardinit {
namespace {

class Evaluation {
 public:
  Evaluation(const Expr& expr, const Scope& scope, Diagnostics& diagnostics)
      : expr_(expr), scope_(scope), diagnostics_(diagnostics) {}

  std::optional<Value> Run() {
    constexpr size_t kUsualStack = 8;
    if (expr_.stack <= kUsualStack) {
      std::array<Value, kUsualStack> stack;
      return Run(stack.data());
    }
    std::vector<Value> stack(expr_.stack);
    return Run(stack.data());
  }

 private:
  std::optional<Value> Run(Value* const stack) {
    Value* top = stack;                     // one past the last value
    const Step* next = expr_.steps.data();  // the first step whose value counts
    for (const Step& step : expr_.steps) {
      // Where no value can be computed, or is needed, names may be wrong all the same.
      if (failed_ || &step < next) {
        if (step.op == Step::Op::kName) Look(step);
        continue;
      }
      std::optional<Value> value;
      switch (step.op) {
        case Step::Op::kLiteral:
          value = step.literal;
          break;
        case Step::Op::kName:
          value = Look(step);
          break;
        case Step::Op::kNegate:
          top -= 1;
          value = Negate(step, top[0]);
          break;
        case Step::Op::kNot:
          top -= 1;
          value = int64_t{!IsTrue(top[0])};
          break;
        case Step::Op::kDecide:
          if (IsTrue(top[-1]) == (step.binary->power == kAnd)) continue;
          next = &step + step.arguments + 1;
          top -= 1;
          value = int64_t{step.binary->power == kOr};
          break;
        case Step::Op::kCall:
          top -= step.arguments;
          value = Call(step, {top, step.arguments});
          break;
        case Step::Op::kBinary:
          top -= 2;
          value = Binary(step, top[0], top[1]);
      }
      failed_ = !value;
      if (value) *top++ = *value;
    }
    if (failed_) return std::nullopt;
    return stack[0];
  }

  std::optional<Value> Look(const Step& step) {
    const std::string name(Text(step));
    std::optional<Value> value = scope_.Find(name, diagnostics_);
    if (!value && scope_.IsBroken(name)) return std::nullopt;
    if (!value) {
      if (Contains(unknown_, name)) return std::nullopt;
      unknown_.push_back(name);
      return Fail(step, fmt::format("unknown name {}", Quote(name)),
                  IsElementName(name) ? "only elements have it, in `init: {expr: …}`"
                                      : DidYouMean(name, scope_.Names()));
    }
    return Finite(step, *value);
  }

  std::optional<Value> Negate(const Step& step, const Value& value) {
    if (const double* number = std::get_if<double>(&value)) return -*number;
    return Checked(step, Subtract(0, std::get<int64_t>(value)), "-", 0, std::get<int64_t>(value));
  }

  std::optional<Value> Call(const Step& step, std::span<const Value> arguments) {
    if (step.function->call == nullptr) {
      return Fail(step,
                  fmt::format("{} differs from element to element, but one number is needed here",
                              Quote(Text(step))),
                  "draw in `init: {expr: …}`");
    }
    CallResult result = step.function->call(arguments);
    if (!result.value) {
      // "needs …" and "overflows …" continue the name of the function.
      const bool clause = result.problem.starts_with("the ");
      return Fail(
          step, clause ? result.problem : fmt::format("{} {}", Quote(Text(step)), result.problem));
    }
    return Finite(step, *result.value);
  }

  static bool IsTrue(const Value& value) { return ToDouble(value) != 0; }

  // Computes as the function `mod` does.
  std::optional<Value> Remainder(const Step& step, const Value& left, const Value& right) {
    const Value arguments[2] = {left, right};
    CallResult result = FindFunction("mod")->call({arguments, 2});
    if (result.value) return *result.value;
    return Fail(step, fmt::format("{} {}", Quote(Text(step)), result.problem));
  }

  std::optional<Value> Binary(const Step& step, const Value& left, const Value& right) {
    const ElementOp op = step.binary->op;
    // The first operand has not settled the result.
    if (step.binary->power == kAnd || step.binary->power == kOr) return int64_t{IsTrue(right)};
    if (op == ElementOp::kMod) return Remainder(step, left, right);
    const double x = ToDouble(left), y = ToDouble(right);
    if (op == ElementOp::kDivide && y == 0) {
      return Fail(step, fmt::format("division by zero in {}", Quote(Text(step))));
    }
    const int64_t* a = std::get_if<int64_t>(&left);
    const int64_t* b = std::get_if<int64_t>(&right);
    const bool are_integers = a != nullptr && b != nullptr;
    if (step.binary->power == kComparison) {
      const double holds = are_integers ? Apply(op, (*a > *b) - (*a < *b)) : Apply(op, x, y);
      return int64_t{holds != 0};
    }
    if (are_integers) {
      switch (op) {
        case ElementOp::kAdd:
          return Checked(step, Add(*a, *b), "+", *a, *b);
        case ElementOp::kSubtract:
          return Checked(step, Subtract(*a, *b), "-", *a, *b);
        case ElementOp::kMultiply:
          return Checked(step, Multiply(*a, *b), "*", *a, *b);
        default:
          // The only quotient of integers that overflows is a negation. Handling it here also keeps
          // the remainder below from trapping.
          if (*b == -1) return Checked(step, Subtract(0, *a), "/", *a, *b);
          if (*a % *b == 0) return *a / *b;
      }
    }
    return Finite(step, Apply(op, x, y));
  }

  std::optional<Value> Checked(const Step& step, std::optional<int64_t> result, const char* op,
                               int64_t a, int64_t b) {
    if (result) return *result;
    return Fail(step,
                fmt::format("{} overflows 64-bit integers: {} {} {}", Quote(Text(step)), a, op, b),
                "write one of the numbers with a decimal point to compute in floats");
  }

  std::optional<Value> Finite(const Step& step, const Value& value) {
    const double* number = std::get_if<double>(&value);
    if (number == nullptr || std::isfinite(*number)) return value;
    return Fail(step, fmt::format("{} is too large for a float", Quote(Text(step))));
  }

  std::string_view Text(const Step& step) const { return expr_.TextOf(step); }

  Reported Fail(const Step& step, std::string message, std::string hint = {}) {
    return diagnostics_.Error(expr_.SpanOf(step), std::move(message), std::move(hint));
  }

  const Expr& expr_;
  const Scope& scope_;
  Diagnostics& diagnostics_;
  bool failed_ = false;
  std::vector<std::string> unknown_;  // names that were reported
};

// Returns "but it is 0" for a literal, else "but `d / heads` is 2.5".
std::string ButIs(const Expr& expr, const Value& value) {
  const std::string shown = FormatValue(value);
  if (shown == expr.text) return fmt::format("but it is {}", shown);
  return fmt::format("but {} is {}", Quote(expr.text), shown);
}

std::string Bounds(int64_t low, int64_t high) {
  if (high == std::numeric_limits<int64_t>::max()) return fmt::format("at least {}", low);
  return fmt::format("between {} and {}", low, high);
}

}  // namespace

std::optional<Value> Evaluate(const Expr& expr, const Scope& scope, Diagnostics& diagnostics) {
  return Evaluation(expr, scope, diagnostics).Run();
}

std::optional<int64_t> EvaluateInteger(const Expr& expr, const Scope& scope, int64_t low,
                                       int64_t high, std::string_view what,
                                       Diagnostics& diagnostics) {
  const std::optional<Value> value = Evaluate(expr, scope, diagnostics);
  if (!value) return std::nullopt;
  const std::optional<int64_t> integer = ExactInteger(*value);
  if (!integer) {
    const bool large = std::abs(ToDouble(*value)) > 0x1p53;
    return diagnostics.Error(
        expr.span, fmt::format("{} must be a whole number, {}", what, ButIs(expr, *value)),
        large ? "floats above 2^53 have no exact units; write it with integers" : "");
  }
  if (*integer < low || *integer > high) {
    return diagnostics.Error(
        expr.span, fmt::format("{} must be {}, {}", what, Bounds(low, high), ButIs(expr, *value)));
  }
  return integer;
}

std::optional<double> EvaluateNumber(const Expr& expr, const Scope& scope,
                                     Diagnostics& diagnostics) {
  const std::optional<Value> value = Evaluate(expr, scope, diagnostics);
  if (!value) return std::nullopt;
  return ToDouble(*value);
}

}  // namespace shardinit
