#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/parse_number.h"
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

// Thrown at the first mistake: expressions are too short for error recovery.
struct SyntaxError {
  size_t begin, length;
  std::string message, hint;
};

// If one operator is a prefix of another, the longer one comes first.
constexpr Operator kOperators[] = {
    {"<=", kComparison, ElementOp::kLessEqual},
    {"<", kComparison, ElementOp::kLess},
    {">=", kComparison, ElementOp::kGreaterEqual},
    {">", kComparison, ElementOp::kGreater},
    {"==", kComparison, ElementOp::kEqual},
    {"!=", kComparison, ElementOp::kNotEqual},
    {"+", kSum, ElementOp::kAdd},
    {"-", kSum, ElementOp::kSubtract},
    {"*", kProduct, ElementOp::kMultiply},
    {"/", kProduct, ElementOp::kDivide},
    {"%", kProduct, ElementOp::kMod},
    {"and", kAnd, ElementOp::kMultiply},
    {"or", kOr, ElementOp::kMax},
};

// Signs that look like operators, as in text copied from a page.
constexpr std::pair<std::string_view, std::string_view> kForeignSigns[] = {
    {"–", "-"}, {"—", "-"}, {"−", "-"},  {"×", "*"},  {"·", "*"},  {"⋅", "*"},    {"∗", "*"},
    {"÷", "/"}, {"∕", "/"}, {"≤", "<="}, {"≥", ">="}, {"≠", "!="}, {"&&", "and"}, {"||", "or"}};

// Returns the possible meanings of `4k`: 4096 and 4000.
std::optional<std::pair<int64_t, int64_t>> WithoutSuffix(std::string_view number) {
  constexpr std::string_view kSuffixes = "kmg";
  constexpr int64_t kMost = 1000000;
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  number.remove_prefix(static_cast<size_t>(stop - number.data()));
  if (error != std::errc() || number.empty() || value > kMost) return {};
  const size_t power = kSuffixes.find(static_cast<char>(number[0] | 0x20));
  if (power == kSuffixes.npos || !(number.size() == 1 || number.substr(1) == "i")) return {};
  int64_t binary = value, decimal = value;
  for (size_t i = 0; i <= power; ++i) {
    binary *= 1024;
    decimal *= 1000;
  }
  return {{binary, decimal}};
}

[[noreturn]] void Malformed(size_t begin, std::string_view number) {
  std::string hint;
  if (const auto value = WithoutSuffix(number)) {
    hint = fmt::format("a number has no suffix: write `{}`, or `{}`", value->first, value->second);
  } else if (number.find('_') != std::string_view::npos) {
    std::string plain(number);
    std::erase(plain, '_');
    hint = fmt::format("write {}, without `_`", Quote(plain));
  } else if (number.find_first_not_of("0123456789.") != std::string_view::npos &&
             number[0] != '.') {
    hint = "a product needs `*`, and a name cannot start with a digit";
  }
  throw SyntaxError{begin, number.size(), fmt::format("malformed number {}", Quote(number)), hint};
}

// A Pratt parser. Expression(power) reads everything that binds tighter than `power`.
class Parser {
 public:
  explicit Parser(Expr& expr) : expr_(expr), text_(expr.text) {}

  void Parse() {
    Expression(0);
    if (at_ < text_.size()) Unexpected("an operator");
  }

 private:
  void Expression(int power) {
    if (++depth_ > kDeepest) {
      throw SyntaxError{at_, 1,
                        fmt::format("expression is nested more than {} levels deep", kDeepest),
                        "give parts of it a name under `vars`"};
    }
    SkipSpace();
    const size_t begin = at_;
    Operand(power);
    bool compared = false;
    for (;;) {
      SkipSpace();
      const auto* const next =
          std::ranges::find_if(kOperators, [&](const Operator& each) { return IsNext(each.text); });
      if (next == std::end(kOperators) || next->power <= power) break;
      if (next->power == kComparison && std::exchange(compared, true)) {
        throw SyntaxError{at_, next->text.size(), "comparisons do not chain",
                          "write `a < b and b < c`"};
      }
      at_ += next->text.size();
      const size_t decision = expr_.steps.size();
      const bool is_logical = next->power == kAnd || next->power == kOr;
      if (is_logical) Emit({.op = Step::Op::kDecide, .binary = next}, begin, 1);
      Expression(next->power);
      if (is_logical) {
        expr_.steps[decision].arguments = static_cast<uint16_t>(expr_.steps.size() - decision);
      }
      Emit({.op = Step::Op::kBinary, .binary = next}, begin, 2);
    }
    --depth_;
  }

  // Returns whether this operator comes next. A word operator must not be the beginning of a name.
  bool IsNext(std::string_view text) const {
    if (!text_.substr(at_).starts_with(text)) return false;
    const size_t end = at_ + text.size();
    return !IsNameStart(text[0]) || end >= text_.size() || !IsNamePart(text_[end]);
  }

  void Operand(int power) {
    const size_t begin = at_;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (IsDigit(c) || (c == '.' && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
      Number();
    } else if (IsNext("not")) {
      if (power > kNot) {
        throw SyntaxError{at_, 3, "`not` binds less tightly than the operator before it",
                          "write `(not a)`, in parentheses"};
      }
      at_ += 3;
      Expression(kNot);
      Emit({.op = Step::Op::kNot}, begin, 1);
    } else if (IsNameStart(c) && !IsNext("and") && !IsNext("or")) {
      NameOrCall();
    } else if (c == '\'' || c == '"') {
      QuotedText();
    } else if (c == '-') {
      ++at_;
      Expression(kUnary);
      Emit({.op = Step::Op::kNegate}, begin, 1);
    } else if (c == '(') {
      ++at_;
      Expression(0);
      Close(begin);
      // Parentheses belong to the span of the expression that they enclose. The span of a name
      // excludes them.
      if (expr_.steps.back().op == Step::Op::kName) return;
      SetSpan(begin, &expr_.steps.back());
    } else {
      Unexpected("a number, a name or `(`");
    }
  }

  void Number() {
    const size_t begin = at_;
    // Reads everything that a reader would see as one number, so that a malformed number is a
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
                        "other tools read it as octal: write it without the zero"};
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

  // Returns whether this sign belongs to the exponent of the number that starts at `begin`.
  bool IsExponent(size_t begin) const {
    const char before = text_[at_ - 1];
    return (before == 'e' || before == 'E') && !text_.substr(begin).starts_with("0x");
  }

  void NameOrCall() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsNamePart(text_[at_])) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    const size_t after_name = at_;
    SkipSpace();
    if (at_ < text_.size() && text_[at_] == '(') {
      name == "len" ? Length(begin) : Call(name, begin);
    } else if (at_ < text_.size() && text_[at_] == '[') {
      Index(begin);
    } else {
      at_ = after_name;
      const bool is_true = name == "true";
      if (is_true || name == "false") {
        Emit({.op = Step::Op::kLiteral, .literal = int64_t{is_true}}, begin, 0);
      } else {
        Emit({.op = Step::Op::kName}, begin, 0);
      }
    }
  }

  // Text has no escapes, so it cannot contain a quote.
  void QuotedText() {
    const size_t begin = at_;
    const char quote = text_[begin];
    const size_t end = text_.find(quote, begin + 1);
    if (end == text_.npos) {
      throw SyntaxError{begin, 1, fmt::format("`{}` is never closed", quote), {}};
    }
    at_ = end + 1;
    Emit({.op = Step::Op::kText}, begin, 0);
  }

  void Index(size_t begin) {
    const size_t open = at_++;
    Expression(0);
    SkipSpace();
    if (at_ >= text_.size()) throw SyntaxError{open, 1, "`[` is never closed", {}};
    if (text_[at_] != ']') Unexpected("an operator or `]`");
    ++at_;
    Emit({.op = Step::Op::kIndex}, begin, 1);
  }

  void Length(size_t begin) {
    const size_t open = at_++;
    SkipSpace();
    const size_t name = at_;
    while (at_ < text_.size() && IsNamePart(text_[at_])) ++at_;
    const size_t end = at_;
    SkipSpace();
    const bool is_open = at_ >= text_.size();
    if (end == name || !IsNameStart(text_[name]) || (!is_open && text_[at_] != ')')) {
      throw SyntaxError{begin, end - begin, "`len` takes the name of a list",
                        "write it as in `len(widths)`"};
    }
    Close(open);
    Emit({.op = Step::Op::kLength, .arguments = static_cast<uint16_t>(name - begin)}, begin, 0);
  }

  void Call(std::string_view name, size_t begin) {
    const Function* function = FindFunction(name);
    if (function == nullptr) {
      throw SyntaxError{begin, name.size(), fmt::format("unknown function {}", Quote(name)),
                        name == "range" ? "a repeat takes only the count, as in `{layer: 4}`"
                                        : DidYouMean(name, FunctionsLike(name))};
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
      const int least = function->least_arguments, most = function->most_arguments;
      const std::string wanted = most < 0       ? fmt::format("at least {}", least)
                                 : most > least ? fmt::format("{} to {}", least, most)
                                                : fmt::to_string(least);
      throw SyntaxError{begin, at_ - begin,
                        fmt::format("`{}` takes {} argument{}, not {}", name, wanted,
                                    std::max(least, most) == 1 ? "" : "s", count),
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

  // Makes the step cover the text read since `begin`. kLongestExpression bounds both numbers.
  void SetSpan(size_t begin, Step* step) const {
    step->begin = static_cast<uint16_t>(begin);
    step->length = static_cast<uint16_t>(at_ - begin);
  }

  // Adds a step that takes `operands` values from the stack and pushes one.
  void Emit(Step step, size_t begin, int operands) {
    SetSpan(begin, &step);
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
      hint = "operators are + - * / % < <= > >= == != `and` `or` `not`, and parentheses";
    if (found == "^") hint = "a power is `pow(x, y)`";
    if (found == "=") hint = "to compare, write `==`";
    if (found == "if") hint = "write `where(condition, a, b)`";
    for (const auto& [sign, own] : kForeignSigns) {
      if (IsNext(sign)) hint = fmt::format("write `{}`", own);
    }
    for (const std::string_view word : kNotFinite) {
      if (!text_.substr(at_).starts_with(word)) continue;
      throw SyntaxError{
          at_, word.size(), fmt::format("expected a finite number, but found {}", Quote(word)), {}};
    }
    if (text_.substr(0, at_ + 1).ends_with("**")) hint = "a power is `pow(x, y)`";
    if (text_.substr(0, at_ + 1).ends_with("//"))
      hint = "the whole part of a quotient is `floor(a / b)`";
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
  span.length = static_cast<uint32_t>(text.size());
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
    place.column += static_cast<uint32_t>(error.begin);
    place.length = static_cast<uint32_t>(error.length);
    diagnostics.Error(place, error.message, error.hint);
    return nullptr;
  }
  expr->steps.shrink_to_fit();
  return expr;
}

}  // namespace shardinit
