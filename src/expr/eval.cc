#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/checked_math.h"
#include "base/suggest.h"
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
    Value* top = stack;  // one past the last value
    for (const Step& step : expr_.steps) {
      if (failed_) {  // No value can be computed, but other names may be wrong, too.
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
        case Step::Op::kCall:
          top -= step.arguments;
          value = Call(step, {top, step.arguments});
          break;
        default:
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
      if (std::find(unknown_.begin(), unknown_.end(), name) != unknown_.end()) return std::nullopt;
      unknown_.push_back(name);
      Fail(step, fmt::format("unknown name {}", Quote(name)),
           IsElementName(name) ? "only elements have it, in `init: {expr: …}`"
                               : DidYouMean(name, scope_.Names()));
      return std::nullopt;
    }
    return Finite(step, *value);
  }

  std::optional<Value> Negate(const Step& step, const Value& value) {
    if (const double* number = std::get_if<double>(&value)) return -*number;
    return Checked(step, Subtract(0, std::get<int64_t>(value)), "-", 0, std::get<int64_t>(value));
  }

  std::optional<Value> Call(const Step& step, std::span<const Value> arguments) {
    if (step.function->call == nullptr) {
      Fail(step,
           fmt::format("{} differs from element to element, but one number is needed here",
                       Quote(Text(step))),
           "draw in `init: {expr: …}`");
      return std::nullopt;
    }
    CallResult result = step.function->call(arguments);
    if (!result.value) {
      // "needs …" and "overflows …" continue the name of the function.
      const bool clause = result.problem.starts_with("the ");
      Fail(step, clause ? result.problem : fmt::format("{} {}", Quote(Text(step)), result.problem));
      return std::nullopt;
    }
    return Finite(step, *result.value);
  }

  std::optional<Value> Binary(const Step& step, const Value& left, const Value& right) {
    if (step.op == Step::Op::kDivide && ToDouble(right) == 0) {
      Fail(step, fmt::format("division by zero in {}", Quote(Text(step))));
      return std::nullopt;
    }
    const int64_t* a = std::get_if<int64_t>(&left);
    const int64_t* b = std::get_if<int64_t>(&right);
    if (step.op >= Step::Op::kLess && step.op <= Step::Op::kNotEqual) {
      const bool holds = a != nullptr && b != nullptr
                             ? Holds(step.op, *a, *b)
                             : Holds(step.op, ToDouble(left), ToDouble(right));
      return int64_t{holds};
    }
    if (a != nullptr && b != nullptr) {
      switch (step.op) {
        case Step::Op::kAdd:
          return Checked(step, Add(*a, *b), "+", *a, *b);
        case Step::Op::kSubtract:
          return Checked(step, Subtract(*a, *b), "-", *a, *b);
        case Step::Op::kMultiply:
          return Checked(step, Multiply(*a, *b), "*", *a, *b);
        default:
          // The only quotient of integers that overflows is a negation. Handling it here also keeps
          // the remainder below from trapping.
          if (*b == -1) return Checked(step, Subtract(0, *a), "/", *a, *b);
          if (*a % *b == 0) return *a / *b;
      }
    }
    const double x = ToDouble(left), y = ToDouble(right);
    switch (step.op) {
      case Step::Op::kAdd:
        return Finite(step, x + y);
      case Step::Op::kSubtract:
        return Finite(step, x - y);
      case Step::Op::kMultiply:
        return Finite(step, x * y);
      default:
        return Finite(step, x / y);
    }
  }

  template <typename T>
  static bool Holds(Step::Op op, T a, T b) {
    switch (op) {
      case Step::Op::kLess:
        return a < b;
      case Step::Op::kLessEqual:
        return a <= b;
      case Step::Op::kGreater:
        return a > b;
      case Step::Op::kGreaterEqual:
        return a >= b;
      case Step::Op::kEqual:
        return a == b;
      default:
        return a != b;
    }
  }

  std::optional<Value> Checked(const Step& step, std::optional<int64_t> result, const char* op,
                               int64_t a, int64_t b) {
    if (result) return *result;
    Fail(step, fmt::format("{} overflows 64-bit integers: {} {} {}", Quote(Text(step)), a, op, b),
         "write one of the numbers with a decimal point to compute in floats");
    return std::nullopt;
  }

  std::optional<Value> Finite(const Step& step, const Value& value) {
    const double* number = std::get_if<double>(&value);
    if (number == nullptr || std::isfinite(*number)) return value;
    Fail(step, fmt::format("{} is too large for a float", Quote(Text(step))));
    return std::nullopt;
  }

  std::string_view Text(const Step& step) const { return expr_.TextOf(step); }

  void Fail(const Step& step, std::string message, std::string hint = {}) {
    diagnostics_.Error(expr_.SpanOf(step), std::move(message), std::move(hint));
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
    diagnostics.Error(expr.span,
                      fmt::format("{} must be a whole number, {}", what, ButIs(expr, *value)),
                      large ? "floats above 2^53 have no exact units; write it with integers" : "");
    return std::nullopt;
  }
  if (*integer < low || *integer > high) {
    diagnostics.Error(
        expr.span, fmt::format("{} must be {}, {}", what, Bounds(low, high), ButIs(expr, *value)));
    return std::nullopt;
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
