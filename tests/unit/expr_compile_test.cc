// Tests expressions over elements: their compiled form, and each mistake as the user sees it.
#include <gtest/gtest.h>

#include <string>

#include "plan/plan.h"
#include "support/graph_text.h"

namespace shardinit {
namespace {

constexpr char kBefore[] = "    init: {expr: \"";

GraphOutcome Build(const std::string& expr, const std::string& shape = "[6, 4]",
                   const std::string& axes = "[heads, embed]") {
  return BuildRest(
      "vars: {d: 4, third: 1 / 3, embed: 7, negative: -2, big: 9007199254740993}\n"
      "modules:\n  w:\n    shape: " +
      shape + "\n" + (axes.empty() ? "" : "    axes: " + axes + "\n") + kBefore + expr + "\"}\n");
}

// Returns the canonical text, or the message without the quoted line and without its place, which
// must be the place of `marked`.
std::string Canonical(const std::string& expr, const std::string& shape = "[6, 4]",
                      const std::string& axes = "[heads, embed]") {
  const GraphOutcome outcome = Build(expr, shape, axes);
  if (!outcome.messages.empty()) return outcome.messages;
  return std::get<Expression>(outcome.graph.tensors.at(0).distribution()).program->text;
}

std::string Mistake(const std::string& expr, const std::string& marked,
                    const std::string& shape = "[6, 4]",
                    const std::string& axes = "[heads, embed]") {
  const std::string messages = Build(expr, shape, axes).messages;
  const size_t column = std::string(kBefore).size() + expr.rfind(marked);
  const std::string place = ":" + std::to_string(column + 1) + ": error: ";
  const std::string caret =
      "\n  " + std::string(column, ' ') + std::string(marked.size(), '^') + "\n";
  EXPECT_NE(messages.find(place), std::string::npos) << messages;
  EXPECT_NE(messages.find(caret), std::string::npos) << messages;
  const size_t begin = messages.find(": error: ") + 9;
  const size_t quote = messages.find('\n', begin);
  return messages.substr(begin, quote - begin) +
         messages.substr(std::min(messages.find(caret) + caret.size() - 1, messages.size() - 1));
}

TEST(Compile, NamesBecomeNumbersAndIndices) {
  EXPECT_EQ(Canonical("row * n1 + col"), "i0 * 4 + i1");
  EXPECT_EQ(Canonical("heads * size_embed + i1"), "i0 * 4 + i1");
  EXPECT_EQ(Canonical("index / (n0 * n1)"), "index / 24");
  EXPECT_EQ(Canonical("index + third", "[]", ""), "index + 0.3333333333333333");
  EXPECT_EQ(Canonical("i0 * d", "[8]", ""), "i0 * 4");
  EXPECT_EQ(Canonical("row + 10 * col", "[2, 3, 4]", ""), "i1 + 10 * i2");
}

TEST(Compile, ConstantPartsAreFolded) {
  EXPECT_EQ(Canonical("row * (2 * d + 1)"), "i0 * 9");
  EXPECT_EQ(Canonical("where(d == 4, sqrt(16), 0) + row"), "4 + i0");
  EXPECT_EQ(Canonical("max(3, d, 2) * row"), "4 * i0");
  EXPECT_EQ(Canonical("max(row, 3, d)"), "max(i0, 3, 4)");
  EXPECT_EQ(Canonical("0 * negative"), "-0");
  EXPECT_EQ(Canonical("row - negative"), "i0 - -2");
  // Products with variables keep their order: 2 * row * 3 does not become 6 * row.
  EXPECT_EQ(Canonical("2 * row * 3"), "2 * i0 * 3");
}

TEST(Compile, KeepsNecessaryParentheses) {
  EXPECT_EQ(Canonical("(row - col) - 1"), "i0 - i1 - 1");
  EXPECT_EQ(Canonical("row - (col - 1)"), "i0 - (i1 - 1)");
  EXPECT_EQ(Canonical("row / (col * 2 + 1)"), "i0 / (i1 * 2 + 1)");
  EXPECT_EQ(Canonical("(row < col) < 1"), "(i0 < i1) < 1");
  EXPECT_EQ(Canonical("(row < col) * 2"), "(i0 < i1) * 2");
  EXPECT_EQ(Canonical("row + 1 <= col * 2"), "i0 + 1 <= i1 * 2");
  EXPECT_EQ(Canonical("-(row * col)"), "-(i0 * i1)");
  EXPECT_EQ(Canonical("-row * col"), "-i0 * i1");
  EXPECT_EQ(Canonical("--row"), "--i0");
}

TEST(Compile, DropsParenthesesAroundNames) {
  EXPECT_EQ(Canonical("1 + (row)"), "1 + i0");
  EXPECT_EQ(Canonical("((third) * (d)) * (col)"), Canonical("third * d * col"));
}

TEST(Compile, EachOccurrenceIsASeparateDraw) {
  const GraphOutcome outcome = Build("where(uniform() < 0.5, normal(), 0) + normal() + bits()");
  ASSERT_EQ(outcome.messages, "");
  const auto& program = *std::get<Expression>(outcome.graph.tensors[0].distribution()).program;
  ASSERT_EQ(program.draws.size(), 4u);
  EXPECT_EQ(program.draws[0].draw, Draw::kUniform);
  EXPECT_EQ(program.draws[1].draw, Draw::kNormal);
  EXPECT_EQ(program.draws[2].draw, Draw::kNormal);
  EXPECT_EQ(program.draws[3].draw, Draw::kBits);
  EXPECT_TRUE(IsRandom(outcome.graph.tensors[0].distribution()));
  EXPECT_FALSE(IsRandom(Build("row").graph.tensors[0].distribution()));
}

TEST(Compile, CanonicalTextIsStable) {
  for (const char* expr :
       {"where(row >= col, normal() * 0.02, 0)", "-(row - 1e-30) / third", "-third * row - -d",
        "clip(erf_inv(uniform() * 2 - 1), negative, 2) + 1e300 * (bits() != 3)"}) {
    const std::string once = Canonical(expr);
    EXPECT_EQ(Canonical(once), once);
    const int64_t shape[] = {6, 4};
    ASSERT_NE(CompileCanonical(once, shape), nullptr) << once;
    EXPECT_EQ(CompileCanonical(once + " ", shape), nullptr);
  }
  const int64_t shape[] = {6};
  EXPECT_EQ(CompileCanonical("i1", shape), nullptr);
  EXPECT_EQ(CompileCanonical("1 + 1", shape), nullptr);
}

TEST(Compile, PlansKeepCanonicalExpressions) {
  GraphOutcome outcome = Build("where(row >= col, normal() * third, uniform())");
  ASSERT_EQ(outcome.messages, "");
  const Plan plan = MakePlan(std::move(outcome.graph));
  const std::string text = WritePlan(plan);
  const std::string init =
      R"x("init": {"expr": {"text": "where(i0 >= i1, normal() * 0.3333333333333333, uniform())"}})x";
  EXPECT_NE(text.find(init), std::string::npos) << text;
  const Plan again = ReadPlan(text, "plan.json");
  EXPECT_EQ(WritePlan(again), text);
  EXPECT_EQ(again.graph.tensors[0].distribution(), plan.graph.tensors[0].distribution());
  EXPECT_EQ(again.graph.tensors[0].stream().key, plan.graph.tensors[0].stream().key);
}

TEST(Compile, NamedExpressionInitializersAreCompiled) {
  const auto lowered = [](const std::string& shape, const std::string& init) {
    const GraphOutcome outcome =
        BuildRest("modules: {w: {shape: " + shape + ", init: " + init + "}}\n");
    return outcome.messages.empty() ? Print(outcome.graph.tensors.at(0).distribution())
                                    : outcome.messages;
  };
  EXPECT_EQ(lowered("[3, 4]", "eye"), "expr(where(i0 == i1, 1, 0))");
  EXPECT_EQ(lowered("[3, 4]", "{identity: {gain: 0.5}}"), "expr(where(i0 == i1, 0.5, 0))");
  EXPECT_EQ(lowered("[8, 4, 3]", "{dirac: {groups: 2}}"), "expr((mod(i0, 4) == i1) * (i2 == 1))");
  EXPECT_EQ(lowered("[5]", "{arange: {start: 1, step: 2}}"), "expr(1 + 2 * index)");
  EXPECT_NE(
      lowered("[3]", "eye").find("an identity matrix has 2 dimensions, but this tensor has 1"),
      std::string::npos);
  EXPECT_NE(lowered("[8, 4, 3]", "{dirac: {groups: 3}}")
                .find("`groups` is 3, but must divide dimension 0, which is 8"),
            std::string::npos);
}

TEST(Compile, ReportsMistakesInExpressions) {
  EXPECT_EQ(Mistake("row + embed", "embed"),
            "`embed` has two meanings: the variable of the spec, 7, and the index in dimension 1\n"
            "  hint: write the index by position, `i0`, the size `n0`, or rename the variable\n");
  EXPECT_EQ(Mistake("row + headz", "headz"),
            "unknown name `headz`\n  hint: did you mean `heads`?\n");
  EXPECT_EQ(Mistake("row + i2", "i2"), "the tensor has no dimension 2, only 2 dimensions\n");
  EXPECT_EQ(Mistake("row + 1", "row", "[6]", ""),
            "`row` needs a tensor of two dimensions or more, but this one has 1 dimension\n"
            "  hint: the index is `i0`\n");
  EXPECT_EQ(Mistake("where(row >= col, 1)", "where(row >= col, 1)"),
            "`where` takes 3 arguments, not 2\n");
  EXPECT_EQ(Mistake("normal(0.02) * 2", "normal(0.02)"),
            "`normal` takes 0 arguments, not 1\n"
            "  hint: write `mean + std * normal()`\n");
  EXPECT_EQ(Mistake("where(0 < row < 5, 1, 0)", "<"),
            "comparisons do not chain\n"
            "  hint: write `a < b and b < c`\n");
  EXPECT_EQ(Mistake("row = col", "="),
            "expected an operator, but found `=`\n  hint: to compare, write `==`\n");
  EXPECT_EQ(Mistake("row + log(d - 4)", "log(d - 4)"), "`log(d - 4)` is too large for a float\n");
  EXPECT_EQ(Mistake("row + log(negative)", "log(negative)"),
            "`log(negative)` is not a real number\n");
  EXPECT_EQ(Mistake("row / (d - 4)", "row / (d - 4)"), "division by zero in `row / (d - 4)`\n");
  EXPECT_EQ(Mistake("row + big", "big"),
            "`big` is 9007199254740993, which f64 cannot hold\n"
            "  hint: elements are computed in f64, which holds all whole numbers up to 2^53\n");
}

TEST(Compile, RejectsDrawsWhereOneNumberIsNeeded) {
  const std::string messages =
      BuildRest("modules: {w: {shape: [2], init: {normal: {std: uniform()}}}}\n").messages;
  EXPECT_NE(
      messages.find("`uniform()` differs from element to element, but one number is needed here"),
      std::string::npos)
      << messages;
  const std::string index =
      BuildRest("modules: {w: {shape: [2], init: {normal: {std: i0}}}}\n").messages;
  EXPECT_NE(index.find("unknown name `i0`"), std::string::npos) << index;
  EXPECT_NE(index.find("it is only known in `init: {expr: …}`"), std::string::npos) << index;
  EXPECT_NE(BuildRest("init: {expr: zeros}\n").messages.find("is a built-in initializer"),
            std::string::npos);
  EXPECT_NE(
      BuildRest("modules: {w: {shape: [2], init: expr}}\n").messages.find("needs an expression"),
      std::string::npos);
}

}  // namespace
}  // namespace shardinit
