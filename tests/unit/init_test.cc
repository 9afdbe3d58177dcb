// Tests every initializer: the distribution that it becomes, and each of its mistakes as the user
// sees it.
#include <gtest/gtest.h>

#include "base/error.h"
#include "generate/fill.h"
#include "init/initializer.h"
#include "support/graph_text.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

GraphOutcome Build(const std::string& init) {
  return BuildRest("modules: {w: {shape: [2], init: " + init + "}}\n");
}

std::string Lowered(const std::string& init) {
  const GraphOutcome outcome = Build(init);
  return outcome.messages.empty() ? Print(outcome.graph.tensors.at(0).distribution())
                                  : outcome.messages;
}

// Returns the messages without their place, which must be the place of `marked` in the line.
std::string Mistake(const std::string& init, const std::string& marked) {
  const std::string line = "modules: {w: {shape: [2], init: " + init + "}}";
  const size_t column = line.rfind(marked);
  const std::string head = "x.yaml:4:" + std::to_string(column + 1) + ": error: ";
  const std::string quote =
      "\n  " + line + "\n  " + std::string(column, ' ') + std::string(marked.size(), '^') + "\n";
  std::string messages = Build(init).messages;
  EXPECT_TRUE(messages.starts_with(head)) << messages;
  const size_t at = messages.find(quote);
  EXPECT_NE(at, std::string::npos) << messages;
  if (at == std::string::npos) return messages;
  return messages.substr(head.size(), at + 1 - head.size()) + messages.substr(at + quote.size());
}

TEST(Initializers, InitializersAreListedInOrder) {
  EXPECT_EQ(InitializerNames(), (std::vector<std::string>{"zeros",          "ones",
                                                          "constant",       "uniform",
                                                          "random_uniform", "normal",
                                                          "random_normal",  "truncated_normal",
                                                          "trunc_normal",   "xavier_uniform",
                                                          "xavier_normal",  "kaiming_uniform",
                                                          "kaiming_normal", "variance_scaling",
                                                          "glorot_uniform", "glorot_normal",
                                                          "he_uniform",     "he_normal",
                                                          "lecun_uniform",  "lecun_normal",
                                                          "orthogonal",     "delta_orthogonal",
                                                          "sparse",         "normalized",
                                                          "expr",           "eye",
                                                          "identity",       "dirac",
                                                          "arange",         "stft",
                                                          "file",           "norms",
                                                          "source",         "rows_like",
                                                          "parts"}));
  EXPECT_EQ(FindInitializer("none"), nullptr);
  EXPECT_EQ(FindInitializer("normal")->name, "normal");
}

TEST(Initializers, InitializersLowerToDistributions) {
  EXPECT_EQ(Lowered("zeros"), "constant(0)");
  EXPECT_EQ(Lowered("ones"), "constant(1)");
  EXPECT_EQ(Lowered("{constant: {value: -2.5}}"), "constant(-2.5)");
  EXPECT_EQ(Lowered("{uniform: {low: -1, high: 2}}"), "uniform(-1, 2)");
  EXPECT_EQ(Lowered("{normal: {std: 0.02}}"), "normal(0, 0.02)");
  EXPECT_EQ(Lowered("{normal: {std: 1 / 8, mean: 3}}"), "normal(3, 0.125)");
  EXPECT_EQ(Lowered("{truncated_normal: {std: 1}}"), "truncated_normal(0, 1, -2, 2)");
  EXPECT_EQ(Lowered("{truncated_normal: {std: 0.5, mean: 1, low: -3, high: 4}}"),
            "truncated_normal(1, 0.5, -3, 4)");
  // torch's cut-offs are elements; JAX's are standard deviations.
  EXPECT_EQ(Lowered("{trunc_normal: {std: 0.5}}"), "truncated_normal(0, 0.5, -4, 4)");
  EXPECT_EQ(Lowered("{trunc_normal: {std: 0.5, mean: 1, a: 0, b: 2}}"),
            "truncated_normal(1, 0.5, -2, 2)");
}

std::string Lowered(const std::string& shape, const std::string& init,
                    const std::string& more = "") {
  const GraphOutcome outcome =
      BuildRest("modules: {w: {shape: " + shape + ", init: " + init + more + "}}\n");
  return outcome.messages.empty() ? Print(outcome.graph.tensors.at(0).distribution())
                                  : outcome.messages;
}

// Dimensions that are rows and columns are printed as bits; the last bit is dimension 0.
TEST(Initializers, OrthogonalFindsRowsAndColumns) {
  EXPECT_EQ(Lowered("[4, 3]", "orthogonal"), "orthogonal(1, rows 1, columns 10)");
  for (const char* more : {", fans: out_in", ", fans: in_out", ", in_axis: 0"}) {
    EXPECT_EQ(Lowered("[4, 3]", "orthogonal", more), "orthogonal(1, rows 1, columns 10)");
  }
  // torch keeps dimension 0, JAX and Keras keep the last one, and `column_axis` keeps any.
  EXPECT_EQ(Lowered("[4, 3, 2]", "orthogonal", ", fans: out_in"),
            "orthogonal(1, rows 1, columns 110)");
  EXPECT_EQ(Lowered("[4, 3, 2]", "orthogonal", ", fans: in_out"),
            "orthogonal(1, rows 11, columns 100)");
  EXPECT_EQ(Lowered("[4, 3, 2]", "{orthogonal: {column_axis: 1}}"),
            "orthogonal(1, rows 101, columns 10)");
  EXPECT_EQ(Lowered("[4, 3, 2]", "{orthogonal: {column_axis: -3}}"),
            "orthogonal(1, rows 1, columns 110)");
  EXPECT_EQ(
      Lowered("[4, 3, 2]", "{orthogonal: {column_axis: out}}", ", in_axis: 1, out_axis: [0, 2]"),
      "orthogonal(1, rows 101, columns 10)");
  EXPECT_EQ(Lowered("[4, 3, 2]", "{orthogonal: {column_axis: h}}", ", axes: [e, h, x]"),
            "orthogonal(1, rows 101, columns 10)");
  EXPECT_EQ(Lowered("[4, 3]", "{orthogonal: {gain: tanh}}"),
            "orthogonal(1.6666666666666667, rows 1, columns 10)");
  EXPECT_EQ(Lowered("[4, 3]", "{orthogonal: {gain: 0}}"), "constant(0)");
  EXPECT_EQ(Lowered("[3, 3, 2, 4]", "delta_orthogonal", ", fans: in_out"),
            "orthogonal(1, rows 100, columns 1000)");
  EXPECT_EQ(Lowered("[4, 2, 3]", "delta_orthogonal", ", fans: out_in"),
            "orthogonal(1, rows 1, columns 10)");
}

TEST(Initializers, InitializersAcceptTheirLimits) {
  EXPECT_EQ(Lowered("{normal: {std: 0}}"), "normal(0, 0)");
  EXPECT_EQ(Lowered("{normal: {std: 1.2676506002282294e30, mean: -8.271806125530277e-25}}"),
            "normal(-8.271806125530277e-25, 1.2676506002282294e+30)");
  EXPECT_EQ(Lowered("{truncated_normal: {std: 0}}"), "truncated_normal(0, 0, -2, 2)");
  EXPECT_EQ(Lowered("{truncated_normal: {std: 1, low: 8, high: 9}}"),
            "truncated_normal(0, 1, 8, 9)");
  EXPECT_EQ(Lowered("{truncated_normal: {std: 1, low: -9, high: -8}}"),
            "truncated_normal(0, 1, -9, -8)");
}

constexpr char kRange[] =
    ", but its magnitude must be 0 or from 2^-80 (8.3e-25) to 2^100 (1.3e30)\n"
    "  hint: outside that range f32 arithmetic would not be exact on every machine\n";

TEST(NormalInit, ReportsMistakesInNormal) {
  EXPECT_EQ(Mistake("{normal: {std: -1}}", "-1"), "`std` is -1, but must not be negative\n");
  EXPECT_EQ(Mistake("{normal: {std: 1e-30}}", "1e-30"), std::string("`std` is 1e-30") + kRange);
  EXPECT_EQ(Mistake("{normal: {std: 1e31}}", "1e31"), std::string("`std` is 1e+31") + kRange);
  EXPECT_EQ(Mistake("{normal: {std: 1, mean: -1e31}}", "-1e31"),
            std::string("`mean` is -1e+31") + kRange);
  EXPECT_EQ(Mistake("{normal: {mean: 1}}", "normal"),
            "`normal` needs `std`\n  hint: write `{normal: {std: …}}`\n");
  EXPECT_EQ(Mistake("normal", "normal"),
            "`normal` needs `std`\n  hint: write `{normal: {std: …}}`\n");
  EXPECT_EQ(Mistake("{normal: {std: 1, men: 2}}", "men"),
            "`normal` has no parameter `men`\n  hint: did you mean `mean`?\n");
}

TEST(NormalInit, ReportsBothMistakesAtOnce) {
  EXPECT_EQ(
      Build("{normal: {mean: 1e31, std: -1}}").messages,
      "x.yaml:4:49: error: `mean` is 1e+31, but its magnitude must be 0 or from 2^-80 (8.3e-25) "
      "to 2^100 (1.3e30)\n"
      "  modules: {w: {shape: [2], init: {normal: {mean: 1e31, std: -1}}}}\n"
      "                                                  ^^^^\n"
      "  hint: outside that range f32 arithmetic would not be exact on every machine\n"
      "x.yaml:4:60: error: `std` is -1, but must not be negative\n"
      "  modules: {w: {shape: [2], init: {normal: {mean: 1e31, std: -1}}}}\n"
      "                                                             ^^\n");
}

TEST(UniformInit, ReportsMistakesInUniform) {
  const std::string hint = "\n  hint: for equal values use `{constant: {value: …}}`\n";
  EXPECT_EQ(Mistake("{uniform: {low: 1, high: -3}}", "-3"),
            "`high` is -3, but must be above `low`, which is 1" + hint);
  EXPECT_EQ(Mistake("{uniform: {low: 7, high: 7.0}}", "7.0"),
            "`high` is 7, but must be above `low`, which is 7" + hint);
  // The numbers differ, but are the same f32.
  EXPECT_EQ(Mistake("{uniform: {low: 1, high: 1.00000001}}", "1.00000001"),
            "`high` is 1.00000001, but must be above `low`, which is 1" + hint);
  EXPECT_EQ(Mistake("{uniform: {low: -1e31, high: 1}}", "-1e31"),
            std::string("`low` is -1e+31") + kRange);
  EXPECT_EQ(Mistake("{uniform: {low: 0, high: 1e-30}}", "1e-30"),
            std::string("`high` is 1e-30") + kRange);
  EXPECT_EQ(Mistake("{uniform: {high: 1}}", "uniform"),
            "`uniform` needs `low`\n  hint: write `{uniform: {low: …}}`\n");
}

// Each bound is valid, but the range between them is too large or too small.
TEST(UniformInit, RejectsRangesThatF32CannotScale) {
  EXPECT_EQ(Mistake("{uniform: {low: -1.2e30, high: 1.1e30}}", "1.1e30"),
            std::string("`high - low` is 2.3000000346091723e+30") + kRange);
  EXPECT_EQ(Mistake("{uniform: {low: 1e-24, high: 1.000001e-24}}", "1.000001e-24"),
            std::string("`high - low` is 9.860761315262648e-31") + kRange);
}

TEST(TruncatedNormalInit, ReportsMistakesInTruncatedNormal) {
  EXPECT_EQ(Mistake("{truncated_normal: {std: -1}}", "-1"),
            "`std` is -1, but must not be negative\n");
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, mean: 1e31}}", "1e31"),
            std::string("`mean` is 1e+31") + kRange);
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, low: 3, high: -5}}", "-5"),
            "`high` is -5, but must be above `low`, which is 3\n");
  // A conflict with a default is reported at the initializer's name.
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, low: 3}}", "truncated_normal"),
            "`high` is 2, but must be above `low`, which is 3\n");
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, low: 8.5, high: 9}}", "8.5"),
            "this cut-off is 8.5 standard deviations from the mean, but almost nothing of a "
            "normal distribution is beyond 8\n");
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, low: -10, high: -9}}", "-9"),
            "this cut-off is -9 standard deviations from the mean, but almost nothing of a "
            "normal distribution is beyond -8\n");
  EXPECT_EQ(
      Mistake("{truncated_normal: {std: 1, low: 0.5, high: 0.500976562500}}", "0.500976562500"),
      "the cut-offs are 0.0009765625 standard deviations apart, but must be at least 0.001 "
      "apart\n  hint: use `uniform` for so narrow a range\n");
  EXPECT_EQ(Mistake("{truncated_normal: {std: 1, a: 1}}", "a"),
            "`truncated_normal` has no parameter `a`\n"
            "  hint: one of `mean`, `std`, `low`, `high`\n");
}

TEST(TruncNormalInit, ReportsMistakesInTruncNormal) {
  EXPECT_EQ(Mistake("{trunc_normal: {std: 0}}", "0"),
            "`std` is 0, so there is nothing to truncate\n  hint: use `{constant: {value: …}}`\n");
  EXPECT_EQ(Mistake("{trunc_normal: {std: -1}}", "-1"), "`std` is -1, but must not be negative\n");
  EXPECT_EQ(Mistake("{trunc_normal: {std: 1, a: 3, b: 3.0}}", "3.0"),
            "`b` is 3, but must be above `a`, which is 3\n");
  EXPECT_EQ(Mistake("{trunc_normal: {std: 0.125, a: 2.25, b: 4}}", "2.25"),
            "this cut-off is 18 standard deviations from the mean, but almost nothing of a "
            "normal distribution is beyond 8\n");
  // A quotient overflows, and f32 cannot represent the elements.
  EXPECT_EQ(Mistake("{trunc_normal: {std: 1e-20, a: -1e300}}", "-1e300"),
            std::string("`a` is -1e+300") + kRange);
  EXPECT_EQ(Mistake("{trunc_normal: {std: 1, b: 1e39}}", "1e39"),
            std::string("`b` is 1e+39") + kRange);
}

TEST(ConstantInit, ReportsMistakesInConstants) {
  EXPECT_EQ(Mistake("constant", "constant"),
            "`constant` needs `value`\n  hint: write `{constant: {value: …}}`\n");
  EXPECT_EQ(Mistake("{zeros: {value: 1}}", "value"),
            "`zeros` has no parameter `value`\n  hint: it takes no arguments\n");
  EXPECT_EQ(Mistake("{ones: {std: 1}}", "std"),
            "`ones` has no parameter `std`\n  hint: it takes no arguments\n");
}

// Every lowered initializer can be drawn.
TEST(Initializers, AcceptedInitializersCanBeDrawn) {
  const double values[] = {0,     -0.0,  1,     -1,   0.02,  2,      -2,     8,     -8,     8.5,
                           1e-24, 1e-25, 1e-30, 1e30, -1e30, 1.2e30, 1e31,   1e300, 1e-300, 9,
                           -9,    100,   -100,  1e6,  -1e6,  1.0009, 7.9999, 1e39,  -1e39,  5e-324};
  const Shape shape = {3, 5};
  const FanSource source{.order = FanOrder::kOutIn, .axes = {}, .batch = {}};
  for (const Initializer* initializer : Initializers()) {
    if (initializer->lower == nullptr) continue;  // This initializer is an expression.
    // Each parameter gets every value and word that it may have.
    std::vector<std::vector<Argument>> choices;
    for (const Parameter& parameter : initializer->parameters) {
      auto& list = choices.emplace_back();
      for (const auto word : parameter.words) list.push_back({0, {}, word});
      if (!parameter.number) continue;
      if (parameter.dimension) {
        for (size_t d = 0; d < shape.size(); ++d) list.push_back({static_cast<double>(d), {}});
        continue;
      }
      for (const double value : values) list.push_back({value, {}});
    }
    size_t cases = 1;
    for (const auto& list : choices) cases *= list.size();
    // Tries all of at most 2,000 combinations, or every 71st of more.
    for (size_t c = 0; c<cases; c += cases> 2000 ? 71 : 1) {
      std::vector<Argument> arguments;
      size_t rest = c;
      for (const auto& list : choices) {
        arguments.push_back(list[rest % list.size()]);
        rest /= list.size();
      }
      Diagnostics diagnostics;
      const Fans fans(shape, source, initializer->name, {});
      const auto distribution = initializer->lower(arguments, fans, diagnostics);
      ASSERT_EQ(distribution.has_value(), !diagnostics.HasErrors());
      if (!distribution) continue;
      const Tensor tensor = MakeTensor("t", DType::f32, shape, *distribution);
      float out[15];
      try {
        BoxFiller(tensor, WholeOf(tensor.shape())).Fill(0, 15, out);
      } catch (const Bug& bug) {
        FAIL() << Print(*distribution) << " from " << initializer->name << ": " << bug.what();
      }
    }
  }
}

}  // namespace
}  // namespace shardinit
