#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "base/suggest.h"
#include "base/text.h"
#include "expr/expr.h"
#include "expr/tree.h"

namespace shardinit {
namespace {

constexpr int kDeepest = 64;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

// Thrown at the first mistake: an expression is too short for recovery.
struct SyntaxError {
  size_t begin, length;
  std::string message, hint;
};

// A Pratt parser. Expression(power) reads everything that binds tighter than `power`.
class Parser {
 public:
  explicit Parser(Expr& expr) : expr_(expr), text_(expr.text) {}

  void Parse() {
    Expression(0);
    if (at_ < text_.size()) Unexpected("an operator");
  }

 private:
  struct Operator {
    std::string_view text;
    Step::Op op;
    int power;
  };
  static constexpr int kComparison = 1, kSum = 2, kProduct = 3, kUnary = 4;
  // If one operator begins with another, the longer one comes first.
  static constexpr Operator kOperators[] = {
      {"<=", Step::Op::kLessEqual, kComparison},
      {"<", Step::Op::kLess, kComparison},
      {">=", Step::Op::kGreaterEqual, kComparison},
      {">", Step::Op::kGreater, kComparison},
      {"==", Step::Op::kEqual, kComparison},
      {"!=", Step::Op::kNotEqual, kComparison},
      {"+", Step::Op::kAdd, kSum},
      {"-", Step::Op::kSubtract, kSum},
      {"*", Step::Op::kMultiply, kProduct},
      {"/", Step::Op::kDivide, kProduct},
  };

  // Returns the operator at this place, or null.
  const Operator* OperatorHere() const {
    for (const Operator& op : kOperators) {
      if (text_.substr(at_).starts_with(op.text)) return &op;
    }
    return nullptr;
  }

  void Expression(int power) {
    if (++depth_ > kDeepest) {
      throw SyntaxError{at_, 1,
                        fmt::format("expression is nested more than {} levels deep", kDeepest),
                        "give parts of it a name under `vars`"};
    }
    SkipSpace();
    const size_t begin = at_;
    Operand();
    bool compared = false;
    for (;;) {
      SkipSpace();
      const Operator* next = OperatorHere();
      if (next == nullptr || next->power <= power) break;
      if (next->power == kComparison && std::exchange(compared, true)) {
        throw SyntaxError{at_, next->text.size(), "comparisons do not chain",
                          "write `(a < b) * (b < c)`: each gives 1 or 0"};
      }
      at_ += next->text.size();
      Expression(next->power);
      Emit({.op = next->op}, begin, 2);
    }
    --depth_;
  }

  void Operand() {
    const size_t begin = at_;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (IsDigit(c) || (c == '.' && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
      Number();
    } else if (IsNameStart(c)) {
      NameOrCall();
    } else if (c == '-') {
      ++at_;
      Expression(kUnary);
      Emit({.op = Step::Op::kNegate}, begin, 1);
    } else if (c == '(') {
      ++at_;
      Expression(0);
      Close(begin);
      // Parentheses belong to the span of what they enclose, except for a name, whose span is the
      // name.
      if (expr_.steps.back().op == Step::Op::kName) return;
      expr_.steps.back().begin = begin;
      expr_.steps.back().length = at_ - begin;
    } else {
      Unexpected("a number, a name or `(`");
    }
  }

  void Number() {
    const size_t begin = at_;
    // This reads everything that a reader would take for one number, so that a malformed one is a
    // single mistake.
    while (at_ < text_.size() &&
           (IsNamePart(text_[at_]) || text_[at_] == '.' ||
            ((text_[at_] == '-' || text_[at_] == '+') && IsExponent(begin)))) {
      ++at_;
    }
    const std::string_view number = text_.substr(begin, at_ - begin);
    const bool hex = number.starts_with("0x");
    const std::string_view digits = hex ? number.substr(2) : number;
    const char* end = digits.data() + digits.size();
    const bool is_integer = hex || number.find_first_not_of("0123456789") == std::string_view::npos;
    if (!hex && number.size() > 1 && number[0] == '0' && IsDigit(number[1])) {
      throw SyntaxError{begin, number.size(),
                        fmt::format("number {} has a leading zero", Quote(number)),
                        "other tools read such numbers as octal: write it without the zero"};
    }
    if (is_integer) {
      int64_t value = 0;
      const auto [stop, error] = std::from_chars(digits.data(), end, value, hex ? 16 : 10);
      if (error == std::errc::result_out_of_range) {
        throw SyntaxError{begin, number.size(),
                          fmt::format("integer {} does not fit in 64 bits", Quote(number)),
                          "the largest is 9223372036854775807"};
      }
      if (error != std::errc() || stop != end) Malformed(begin, number);
      Emit({.op = Step::Op::kLiteral, .literal = value}, begin, 0);
      return;
    }
    double value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (stop != end) Malformed(begin, number);
    if (error != std::errc()) {
      throw SyntaxError{begin, number.size(),
                        fmt::format("number {} is out of range", Quote(number)),
                        "floats are IEEE-754 doubles: magnitudes from 4.9e-324 to 1.8e308"};
    }
    Emit({.op = Step::Op::kLiteral, .literal = value}, begin, 0);
  }

  // Whether the sign at this place belongs to the exponent of the number that starts at `begin`.
  bool IsExponent(size_t begin) const {
    const char before = text_[at_ - 1];
    return (before == 'e' || before == 'E') && !text_.substr(begin).starts_with("0x");
  }

  [[noreturn]] void Malformed(size_t begin, std::string_view number) {
    std::string hint;
    if (number.find('_') != std::string_view::npos) {
      std::string plain(number);
      std::erase(plain, '_');
      hint = fmt::format("write {}, without `_`", Quote(plain));
    } else if (number.find_first_not_of("0123456789.") != std::string_view::npos &&
               number[0] != '.') {
      hint = "a product needs `*`, and a name cannot start with a digit";
    }
    throw SyntaxError{begin, number.size(), fmt::format("malformed number {}", Quote(number)),
                      hint};
  }

  void NameOrCall() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsNamePart(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    const size_t after_name = at_;
    SkipSpace();
    if (at_ < text_.size() && text_[at_] == '(') {
      Call(name, begin);
    } else {
      at_ = after_name;
      Emit({.op = Step::Op::kName}, begin, 0);
    }
  }

  void Call(std::string_view name, size_t begin) {
    const Function* function = FindFunction(name);
    if (function == nullptr) {
      throw SyntaxError{begin, name.size(), fmt::format("unknown function {}", Quote(name)),
                        DidYouMean(name, FunctionsLike(name))};
    }
    const size_t open = at_++;
    int count = 0;
    SkipSpace();
    if (at_ < text_.size() && text_[at_] != ')') {
      do {
        Expression(0);
        ++count;
        SkipSpace();
      } while (at_ < text_.size() && text_[at_] == ',' && ++at_);
    }
    Close(open, true);
    if (count < function->least_arguments ||
        (function->most_arguments >= 0 && count > function->most_arguments)) {
      const int wanted = function->least_arguments;
      throw SyntaxError{begin, at_ - begin,
                        fmt::format("`{}` takes {}{} argument{}, not {}", name,
                                    function->most_arguments < 0 ? "at least " : "", wanted,
                                    wanted == 1 ? "" : "s", count),
                        name == "normal"    ? "write `mean + std * normal()`"
                        : name == "uniform" ? "write `low + (high - low) * uniform()`"
                                            : ""};
    }
    Emit({.op = Step::Op::kCall, .arguments = static_cast<uint16_t>(count), .function = function},
         begin, count);
  }

  void Close(size_t open, bool in_call = false) {
    SkipSpace();
    if (at_ < text_.size() && text_[at_] == ')') {
      ++at_;
      return;
    }
    if (at_ < text_.size()) Unexpected(in_call ? "an operator, `,` or `)`" : "an operator or `)`");
    throw SyntaxError{open, 1, "`(` is never closed", {}};
  }

  // The step takes `operands` values from the stack and puts one there.
  void Emit(Step step, size_t begin, int operands) {
    step.begin = begin;
    step.length = at_ - begin;
    live_ = live_ - operands + 1;
    expr_.stack = std::max(expr_.stack, live_);
    expr_.steps.push_back(step);
  }

  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  [[noreturn]] void Unexpected(std::string_view wanted) {
    if (at_ >= text_.size()) {
      throw SyntaxError{text_.empty() ? 0 : text_.size() - 1,
                        1,
                        fmt::format("expected {}, but the expression ends", wanted),
                        {}};
    }
    size_t length = CharacterAt(text_, at_).size;
    if (IsNamePart(text_[at_])) {
      while (at_ + length < text_.size() && IsNamePart(text_[at_ + length])) ++length;
    }
    const std::string_view found = text_.substr(at_, length);
    std::string hint;
    if (found == "+") hint = "a plus sign in front of a number is not needed";
    if (found == "." || found == "&" || found == "|" || found == "!" || found == "?")
      hint = "operators are + - * / < <= > >= == != and parentheses";
    if (found == "%") hint = "the remainder is `mod(a, b)`";
    if (found == "^") hint = "a power is `pow(x, y)`";
    if (found == "=") hint = "to compare, write `==`";
    if (found == "if") hint = "write `where(condition, a, b)`";
    if (found == "and") hint = "write `where(a, b, 0)`";
    if (found == "or") hint = "write `where(a, 1, b)`";
    for (std::string_view word : {".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      throw SyntaxError{
          at_, word.size(), fmt::format("expected a finite number, but found {}", Quote(word)), {}};
    }
    if (text_.substr(0, at_ + 1).ends_with("**")) hint = "a power is `pow(x, y)`";
    if (text_.substr(0, at_ + 1).ends_with("//"))
      hint = "a quotient without its fraction is `floor(a / b)`";
    throw SyntaxError{at_, length, fmt::format("expected {}, but found {}", wanted, Quote(found)),
                      hint};
  }

  Expr& expr_;
  const std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  size_t live_ = 0;
};

}  // namespace

ExprPtr ParseExpr(std::string_view text, Span span, Diagnostics& diagnostics) {
  span.length = text.size();
  if (text.size() > kLongestExpression) {
    diagnostics.Error(
        span,
        fmt::format("expression is {} bytes long, more than {}", text.size(), kLongestExpression),
        "give parts of it a name under `vars`");
    return nullptr;
  }
  auto expr = std::make_shared<Expr>();
  expr->text = text;
  expr->span = span;
  try {
    Parser(*expr).Parse();
  } catch (const SyntaxError& error) {
    Span place = span;
    place.column += error.begin;
    place.length = error.length;
    diagnostics.Error(place, error.message, error.hint);
    return nullptr;
  }
  expr->steps.shrink_to_fit();
  return expr;
}

Span SpanOf(const Expr& expr) { return expr.span; }

const std::string& TextOf(const Expr& expr) { return expr.text; }

bool IsName(const Expr& expr) {
  return expr.steps.size() == 1 && expr.steps[0].op == Step::Op::kName &&
         expr.steps[0].length == expr.text.size();
}

}  // namespace shardinit
