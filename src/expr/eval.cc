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

// A result on the stack; text can only be compared.
struct Operand {
  Operand() = default;
  Operand(const Value& number) : value(number) {}
  Operand(int64_t number) : value(number) {}
  Operand(double number) : value(number) {}

  Value value{};
  std::optional<std::string_view> text;
};

class Evaluation {
 public:
  Evaluation(const Expr& expr, const Scope& scope, Diagnostics& diagnostics)
      : expr_(expr), scope_(scope), diagnostics_(diagnostics) {}

  std::optional<Operand> Run() {
    constexpr size_t kUsualStack = 8;
    if (expr_.stack <= kUsualStack) {
      std::array<Operand, kUsualStack> stack;
      return Run(stack.data());
    }
    std::vector<Operand> stack(expr_.stack);
    return Run(stack.data());
  }

  // Returns the number that is needed here. Reports an error if the operand is text.
  std::optional<Value> NumberOf(const Step& step, const Operand& operand) {
    if (!operand.text) return operand.value;
    return Fail(step,
                Quote(Text(step)) + (IsAtom(step) ? " is text, but a number is needed here"
                                                  : " computes with text"),
                "text can only be compared, by `==` and `!=`");
  }

 private:
  std::optional<Operand> Run(Operand* const stack) {
    Operand* top = stack;                   // one past the last value
    const Step* next = expr_.steps.data();  // the first step whose value is needed
    for (const Step& step : expr_.steps) {
      // Check names even in branches that are not evaluated.
      if (failed_ || &step < next) {
        Skip(step);
        continue;
      }
      if (step.op == Step::Op::kDecide) {
        const auto decided = NumberOf(step, top[-1]);
        if (decided && IsTrue(*decided) == (step.binary->power == kAnd)) continue;
        next = &step + step.arguments + 1;
        if (decided) top[-1] = int64_t{step.binary->power == kOr};
        failed_ = !decided;
        continue;
      }
      top -= OperandsOf(step);
      const std::optional<Operand> value = Compute(step, top);
      failed_ = !value;
      if (value) *top++ = *value;
    }
    if (failed_) return std::nullopt;
    return stack[0];
  }

  static size_t OperandsOf(const Step& step) {
    switch (step.op) {
      case Step::Op::kNegate:
      case Step::Op::kNot:
      case Step::Op::kIndex:
        return 1;
      case Step::Op::kBinary:
        return 2;
      case Step::Op::kCall:
        return step.arguments;
      default:
        return 0;
    }
  }

  std::optional<Operand> Compute(const Step& step, const Operand* operands) {
    switch (step.op) {
      case Step::Op::kLiteral:
        return step.literal;
      case Step::Op::kText:
        return TextOperand(expr_.NameOf(step));
      case Step::Op::kName:
        return Look(step);
      case Step::Op::kLength:
        if (const VarValue* list = ListOf(step)) return static_cast<int64_t>(list->items.size());
        return std::nullopt;
      case Step::Op::kIndex:
        return ItemAt(step, operands[0]);
      default:
        break;
    }
    const bool compares = step.op == Step::Op::kBinary && (step.binary->op == ElementOp::kEqual ||
                                                           step.binary->op == ElementOp::kNotEqual);
    if (compares && (operands[0].text || operands[1].text)) {
      return Compare(step, operands[0], operands[1]);
    }
    std::array<Value, 4> few;
    const size_t count = OperandsOf(step);
    std::vector<Value> many(count > few.size() ? count : 0);
    const std::span<Value> numbers(many.empty() ? few.data() : many.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const auto number = NumberOf(step, operands[i]);
      if (!number) return std::nullopt;
      numbers[i] = *number;
    }
    return ComputeNumber(step, numbers);
  }

  std::optional<Operand> ComputeNumber(const Step& step, std::span<const Value> numbers) {
    const std::optional<Value> number =
        step.op == Step::Op::kNegate ? Negate(step, numbers[0])
        : step.op == Step::Op::kNot  ? Value(int64_t{!IsTrue(numbers[0])})
        : step.op == Step::Op::kCall ? Call(step, numbers)
                                     : Binary(step, numbers[0], numbers[1]);
    if (!number) return std::nullopt;
    return *number;
  }

  std::optional<Operand> Compare(const Step& step, const Operand& left, const Operand& right) {
    if (left.text && right.text) {
      return int64_t{(*left.text == *right.text) == (step.binary->op == ElementOp::kEqual)};
    }
    return Fail(step, fmt::format("{} compares text with a number", Quote(Text(step))),
                "text needs quotes, as in `kind == 'attention'`");
  }

  static Operand TextOperand(std::string_view text) {
    Operand operand;
    operand.text = text;
    return operand;
  }

  static Operand OperandOf(const VarItem& item) {
    if (const auto* text = std::get_if<std::string>(&item)) return TextOperand(*text);
    if (const auto* number = std::get_if<double>(&item)) return *number;
    return std::get<int64_t>(item);
  }

  void Skip(const Step& step) {
    if (step.op == Step::Op::kName) Look(step);
    if (step.op == Step::Op::kIndex || step.op == Step::Op::kLength) ListOf(step);
  }

  std::optional<Operand> Look(const Step& step) {
    const std::string name(Text(step));
    if (const auto value = scope_.Find(name, diagnostics_)) return Number(step, *value);
    if (scope_.IsBroken(name)) return std::nullopt;
    const VarValue* constant = scope_.FindVariable(name, diagnostics_);
    if (constant == nullptr) return Unknown(step, name);
    if (!constant->is_list) return OperandOf(constant->items[0]);
    return Fail(step,
                fmt::format("{} is a list of {}, but one number is needed here", Quote(name),
                            constant->items.size()),
                fmt::format("write `{}[0]` for its first item, or `len({})`", name, name));
  }

  std::optional<Operand> Number(const Step& step, const Value& value) {
    if (const auto finite = Finite(step, value)) return *finite;
    return std::nullopt;
  }

  Reported Unknown(const Step& step, const std::string& name) {
    if (Contains(unknown_, name)) return {};
    unknown_.push_back(name);
    const std::string place =
        IsElementName(name) ? "it is only known in `init: {expr: …}`" : scope_.PlaceOf(name);
    return Fail(step, fmt::format("unknown name {}", Quote(name)),
                place.empty() ? DidYouMean(name, scope_.Names()) : place);
  }

  // Returns null, and reports it, if the name is not a list.
  const VarValue* ListOf(const Step& step) {
    const std::string name(expr_.NameOf(step));
    const auto number = scope_.Find(name, diagnostics_);
    if (!number && scope_.IsBroken(name)) return nullptr;
    const VarValue* constant = number ? nullptr : scope_.FindVariable(name, diagnostics_);
    if (!number && constant == nullptr) return Unknown(step, name);
    if (constant != nullptr && constant->is_list) return constant;
    return Fail(step,
                fmt::format("{} is {}, not a list", Quote(name), number ? "a number" : "text"),
                "a list needs brackets, as in `vars: {widths: [64, 128]}`");
  }

  std::optional<Operand> ItemAt(const Step& step, const Operand& at) {
    const VarValue* list = ListOf(step);
    const auto number = list == nullptr ? std::nullopt : NumberOf(step, at);
    if (!number) return std::nullopt;
    const auto index = ExactInteger(*number);
    const size_t size = list->items.size();
    if (index && *index >= 0 && static_cast<size_t>(*index) < size) {
      return OperandOf(list->items[static_cast<size_t>(*index)]);
    }
    return Fail(step,
                fmt::format("{} asks for item {}, but {} has {}", Quote(Text(step)),
                            FormatValue(*number), Quote(expr_.NameOf(step)),
                            size == 1 ? "one item, 0" : fmt::format("items 0 to {}", size - 1)));
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

  // Computes the function `mod`.
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
          // The only quotient of integers that overflows is a negation. Handling it here also
          // prevents the remainder below from trapping.
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

// Returns "but it is 0" for a literal, otherwise "but `d / heads` is 2.5".
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
  Evaluation evaluation(expr, scope, diagnostics);
  const auto result = evaluation.Run();
  return result ? evaluation.NumberOf(expr.steps.back(), *result) : std::nullopt;
}

std::optional<VarValue> EvaluateVariable(const Expr& expr, const Scope& scope,
                                         Diagnostics& diagnostics) {
  if (IsName(expr)) {
    const VarValue* constant = scope.FindVariable(TextOf(expr), diagnostics);
    if (constant != nullptr) return *constant;
  }
  const auto result = Evaluation(expr, scope, diagnostics).Run();
  if (!result) return std::nullopt;
  if (result->text) return VarValue{false, {std::string(*result->text)}};
  return VarValue{false, {std::visit([](auto number) { return VarItem(number); }, result->value)}};
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
