#include "expr/expr.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "expr/functions.h"

namespace shardinit {
namespace {

class TestScope : public Scope {
 public:
  std::optional<Value> Find(const std::string& name, Diagnostics&) const override {
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, value] : values_) names.push_back(name);
    return names;
  }

 private:
  const std::map<std::string, Value> values_ = {
      {"d", int64_t{10}}, {"heads", int64_t{4}}, {"big", int64_t{1} << 62}, {"std", 0.02}};
};

// Returns "7" or "2.5" (whole floats end in ".0"), or the rendered errors.
std::string Result(const std::string& text) {
  Diagnostics diagnostics;
  const Source* source = diagnostics.Add({"x", text});
  const ExprPtr expr = ParseExpr(text, {source, 1, 1, 1}, diagnostics);
  std::optional<Value> value;
  if (expr != nullptr) value = Evaluate(*expr, TestScope(), diagnostics);
  EXPECT_EQ(value.has_value(), !diagnostics.HasErrors()) << text;
  if (!value) return Render(diagnostics.all());
  const bool whole_float = std::holds_alternative<double>(*value) && ExactInteger(*value);
  return FormatValue(*value) + (whole_float ? ".0" : "");
}

std::string IntegerResult(const std::string& text, int64_t low, int64_t high) {
  Diagnostics diagnostics;
  const Source* source = diagnostics.Add({"x", text});
  const ExprPtr expr = ParseExpr(text, {source, 1, 1, 1}, diagnostics);
  const std::optional<int64_t> value =
      EvaluateInteger(*expr, TestScope(), low, high, "dimension 0", diagnostics);
  return value ? std::to_string(*value) : Render(diagnostics.all());
}

TEST(Expr, NumbersAreParsed) {
  EXPECT_EQ(Result("0"), "0");
  EXPECT_EQ(Result("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(Result("0x1F"), "31");
  EXPECT_EQ(Result("0.02"), "0.02");
  EXPECT_EQ(Result("1e-5"), "1e-05");
  EXPECT_EQ(Result("2.5E+3"), "2500.0");
  EXPECT_EQ(Result(".5"), "0.5");
  EXPECT_EQ(Result("1."), "1.0");
}

TEST(Expr, OperatorsHavePrecedenceAndAssociation) {
  EXPECT_EQ(Result("1 + 2 * 3"), "7");
  EXPECT_EQ(Result("(1 + 2) * 3"), "9");
  EXPECT_EQ(Result("10 - 4 - 3"), "3");
  EXPECT_EQ(Result("100 / 10 / 5"), "2");
  EXPECT_EQ(Result("-2 * 3"), "-6");
  EXPECT_EQ(Result("2 * -3"), "-6");
  EXPECT_EQ(Result("2 - -3"), "5");
  EXPECT_EQ(Result("--3"), "3");
  EXPECT_EQ(Result("-d * heads"), "-40");
}

TEST(Expr, IntegerResultsStayIntegersIfExact) {
  EXPECT_EQ(Result("d / 5"), "2");
  EXPECT_EQ(Result("d / heads"), "2.5");
  EXPECT_EQ(Result("d * 0.5"), "5.0");
  EXPECT_EQ(Result("std / 2"), "0.01");
  EXPECT_EQ(Result("-7 / 7"), "-1");
}

TEST(Expr, FunctionsComputeTheirValues) {
  EXPECT_EQ(Result("sqrt(16)"), "4.0");
  EXPECT_EQ(Result("0.02 / sqrt(2 * 50)"), "0.002");
  EXPECT_EQ(Result("min(3, d, 7)"), "3");
  EXPECT_EQ(Result("max(3, 2.5)"), "3.0");
  EXPECT_EQ(Result("ceil_div(d, 4)"), "3");
  EXPECT_EQ(Result("ceil_div(-d, 4)"), "-2");
  EXPECT_EQ(Result("round_up(d, 8)"), "16");
  EXPECT_EQ(Result("round_up(16, 8)"), "16");
  EXPECT_EQ(Result("round_up(3.5 * d, 8)"), "40");
}

TEST(Expr, LongChainsDoNotExhaustTheStack) {
  std::string chain = "1";
  while (chain.size() < 4000) chain += "+1";
  EXPECT_EQ(Result(chain), "2001");
  std::string call = "max(1";
  while (call.size() < 4000) call += ",1";
  EXPECT_EQ(Result(call + ",2)"), "2");
}

TEST(Expr, SyntaxErrorsAreReported) {
  const std::map<std::string, std::string> cases = {
      {"",
       "x:1:1: error: expected a number, a name or `(`, but the expression "
       "ends\n  \n  ^\n"},
      {"2 *",
       "x:1:3: error: expected a number, a name or `(`, but the "
       "expression ends\n  2 *\n    ^\n"},
      {"2 d",
       "x:1:3: error: expected an operator, but found `d`\n"
       "  2 d\n    ^\n"},
      {"2d",
       "x:1:1: error: malformed number `2d`\n  2d\n  ^^\n"
       "  hint: a product needs `*`, and a name cannot start with a "
       "digit\n"},
      {"1_000",
       "x:1:1: error: malformed number `1_000`\n  1_000\n  ^^^^^\n"
       "  hint: write `1000`, without `_`\n"},
      {"017",
       "x:1:1: error: number `017` has a leading zero\n  017\n  ^^^\n"
       "  hint: other tools read it as octal: write it "
       "without the zero\n"},
      {"+5",
       "x:1:1: error: expected a number, a name or `(`, but found `+`\n"
       "  +5\n  ^\n"
       "  hint: a plus sign in front of a number is not needed\n"},
      {"2 ** 3",
       "x:1:4: error: expected a number, a name or `(`, but found "
       "`*`\n  2 ** 3\n     ^\n"
       "  hint: a power is `pow(x, y)`\n"},
      {"2 ^ 3",
       "x:1:3: error: expected an operator, but found `^`\n"
       "  2 ^ 3\n    ^\n"
       "  hint: a power is `pow(x, y)`\n"},
      {"(1 + 2", "x:1:1: error: `(` is never closed\n  (1 + 2\n  ^\n"},
      {"1)",
       "x:1:2: error: expected an operator, but found `)`\n"
       "  1)\n   ^\n"},
      {"9223372036854775808",
       "x:1:1: error: integer `9223372036854775808` does not fit in 64 bits\n"
       "  9223372036854775808\n  ^^^^^^^^^^^^^^^^^^^\n"
       "  hint: the largest is 9223372036854775807\n"},
      {"1e400",
       "x:1:1: error: number `1e400` is out of range\n  1e400\n"
       "  ^^^^^\n"
       "  hint: floats are IEEE-754 doubles: magnitudes from 4.9e-324 "
       "to 1.8e308\n"},
      {".nan",
       "x:1:1: error: expected a finite number, but found `.nan`\n"
       "  .nan\n  ^^^^\n"},
      {"0x",
       "x:1:1: error: malformed number `0x`\n  0x\n  ^^\n"
       "  hint: a product needs `*`, and a name cannot start with a "
       "digit\n"},
      {"1.2.3", "x:1:1: error: malformed number `1.2.3`\n  1.2.3\n  ^^^^^\n"},
      {"sqr(2)",
       "x:1:1: error: unknown function `sqr`\n  sqr(2)\n  ^^^\n"
       "  hint: did you mean `sqrt`?\n"},
      {"sqrt(1, 2)",
       "x:1:1: error: `sqrt` takes 1 argument, not 2\n"
       "  sqrt(1, 2)\n  ^^^^^^^^^^\n"},
      {"min()",
       "x:1:1: error: `min` takes at least 1 argument, not 0\n"
       "  min()\n  ^^^^^\n"},
      {"min(1,)",
       "x:1:7: error: expected a number, a name or `(`, but found "
       "`)`\n  min(1,)\n        ^\n"},
      {"ぱ",
       "x:1:1: error: expected a number, a name or `(`, but found `ぱ`\n"
       "  ぱ\n  ^^\n"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Result(text), expected);
}

TEST(Expr, TooLongOrDeepTextIsRejected) {
  EXPECT_EQ(Result(std::string(60, '(') + "1" + std::string(60, ')')), "1");
  for (const std::string& deep : {std::string(1000, '('), std::string(1000, '-') + "1"}) {
    EXPECT_NE(Result(deep).find("error: expression is nested more than 64 levels deep\n"),
              std::string::npos);
  }
  EXPECT_NE(
      Result(std::string(5000, '1')).find("error: expression is 5000 bytes long, more than 4096\n"),
      std::string::npos);
}

TEST(Expr, EvaluationErrorsPointAtTheCause) {
  EXPECT_EQ(Result("2 * (d - heads * 2.5) + 1 / (d - 10)"),
            "x:1:25: error: division by zero in `1 / (d - 10)`\n"
            "  2 * (d - heads * 2.5) + 1 / (d - 10)\n"
            "                          ^^^^^^^^^^^^\n");
  EXPECT_EQ(Result("1 + big * 4"),
            "x:1:5: error: `big * 4` overflows 64-bit integers: "
            "4611686018427387904 * 4\n"
            "  1 + big * 4\n"
            "      ^^^^^^^\n"
            "  hint: write one of the numbers with a decimal point to compute "
            "in floats\n");
  EXPECT_EQ(Result("(-big - big) / -1"),
            "x:1:1: error: `(-big - big) / -1` overflows 64-bit integers: "
            "-9223372036854775808 / -1\n"
            "  (-big - big) / -1\n"
            "  ^^^^^^^^^^^^^^^^^\n"
            "  hint: write one of the numbers with a decimal point to compute "
            "in floats\n");
  EXPECT_EQ(Result("1 + 1e308 * 10"),
            "x:1:5: error: `1e308 * 10` is too large for a float\n"
            "  1 + 1e308 * 10\n"
            "      ^^^^^^^^^^\n");
  EXPECT_EQ(Result("1 + sqrt(-d)"),
            "x:1:5: error: the square root of -10 is not a real number\n"
            "  1 + sqrt(-d)\n"
            "      ^^^^^^^^\n");
  EXPECT_EQ(Result("round_up(big * 1, 3) * 0 + round_up(d, 0)"),
            "x:1:28: error: `round_up(d, 0)` needs a divisor of at least 1, "
            "not 0\n"
            "  round_up(big * 1, 3) * 0 + round_up(d, 0)\n"
            "                             ^^^^^^^^^^^^^^\n");
  EXPECT_EQ(Result("ceil_div(d, 2.5)"),
            "x:1:1: error: `ceil_div(d, 2.5)` needs whole numbers, not 2.5\n"
            "  ceil_div(d, 2.5)\n"
            "  ^^^^^^^^^^^^^^^^\n");
  EXPECT_EQ(Result("2 * head"),
            "x:1:5: error: unknown name `head`\n"
            "  2 * head\n"
            "      ^^^^\n"
            "  hint: did you mean `heads`?\n");
}

TEST(EvaluateInteger, EvaluateIntegerReportsValueAndExpression) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(IntegerResult("d * 3.5", 0, kMost), "35");
  EXPECT_EQ(IntegerResult("sqrt(16)", 0, kMost), "4");
  EXPECT_EQ(IntegerResult("d / heads", 0, kMost),
            "x:1:1: error: dimension 0 must be a whole number, but "
            "`d / heads` is 2.5\n"
            "  d / heads\n"
            "  ^^^^^^^^^\n");
  EXPECT_EQ(IntegerResult("0", 1, kMost),
            "x:1:1: error: dimension 0 must be at least 1, but it is 0\n"
            "  0\n"
            "  ^\n");
  EXPECT_EQ(IntegerResult("d", 1, 8),
            "x:1:1: error: dimension 0 must be between 1 and 8, but `d` is "
            "10\n"
            "  d\n"
            "  ^\n");
  EXPECT_EQ(IntegerResult("1e18", 1, kMost),
            "x:1:1: error: dimension 0 must be a whole number, but `1e18` is "
            "1e+18\n"
            "  1e18\n"
            "  ^^^^\n"
            "  hint: floats above 2^53 have no exact units; write it with "
            "integers\n");
}

}  // namespace
}  // namespace shardinit
