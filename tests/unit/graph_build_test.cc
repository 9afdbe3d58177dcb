#include <gtest/gtest.h>

#include "graph/build.h"
#include "rng/stream.h"
#include "support/graph_text.h"

namespace shardinit {
namespace {

std::string Tensors(const std::string& rest) {
  const GraphOutcome outcome = BuildRest(rest);
  return outcome.messages + PrintTensors(outcome.graph);
}

std::string Messages(const std::string& rest) { return BuildRest(rest).messages; }

TEST(BuildGraph, BuildsAGraphFromAllKeys) {
  const GraphOutcome outcome = BuildText(
      "shardinit: 1\n"
      "name: llama\n"
      "seed: 6 + 1\n"
      "dtype: bf16\n"
      "engine: philox4x32\n"
      "replicas: full\n"
      "vars: {d: 8, ff: 4 * d, layers: 2}\n"
      "mesh: {axes: {fsdp: d / 4, tensor: 4}}\n"
      "rules: [{mlp: tensor}, {embed: fsdp}, {both: [tensor, fsdp]}, {norm: null}]\n"
      "init:\n"
      "  base: {normal: {std: 1 / d}}\n"
      "  other: base\n"
      "modules:\n"
      "  embed: {shape: [16, d], shard: [[fsdp, tensor]], init: base}\n"
      "  layers:\n"
      "    repeat: {layer: layers}\n"
      "    up.weight: {shape: [ff, d], axes: [mlp, embed], init: other}\n"
      "    norm: {shape: [d], axes: [norm], init: ones, dtype: f32}\n"
      "    scale: {shape: [], init: {constant: {value: layer + 0.5}}}\n"
      "  head: {shape: [8, 3], axes: [both, null], init: {uniform: {low: -1, high: 1}}, key: "
      "embed2}\n");
  EXPECT_EQ(outcome.messages, "");
  EXPECT_EQ(Print(outcome.graph),
            "llama seed 7 philox4x32 mesh fsdp=2 tensor=4 full\n"
            "embed bf16 [16, 8] normal(0, 0.125) (fsdp, tensor) ()\n"
            "layers.0.up.weight bf16 [32, 8] normal(0, 0.125) (tensor) (fsdp)\n"
            "layers.0.norm f32 [8] constant(1) ()\n"
            "layers.0.scale bf16 [] constant(0.5)\n"
            "layers.1.up.weight bf16 [32, 8] normal(0, 0.125) (tensor) (fsdp)\n"
            "layers.1.norm f32 [8] constant(1) ()\n"
            "layers.1.scale bf16 [] constant(1.5)\n"
            "head bf16 [8, 3] uniform(-1, 1) (tensor, fsdp) () key embed2\n");
}

TEST(BuildGraph, OmittedKeysHaveDefaults) {
  const GraphOutcome outcome = BuildRest("modules: {w: {shape: [3], init: zeros}}\n");
  EXPECT_EQ(Print(outcome.graph),
            "x seed 0 philox4x32 mesh dedupe\n"
            "w f32 [3] constant(0) ()\n");
}

// Repeats.

TEST(Repeat, RepeatsNestAndNumberModules) {
  EXPECT_EQ(Tensors("modules:\n"
                    "  a:\n"
                    "    repeat: {i: 2}\n"
                    "    b:\n"
                    "      repeat: {j: i + 1}\n"
                    "      w: {shape: [10 * i + j + 1], init: zeros}\n"),
            "a.0.b.0.w f32 [1] constant(0) ()\n"
            "a.1.b.0.w f32 [11] constant(0) ()\n"
            "a.1.b.1.w f32 [12] constant(0) ()\n");
}

TEST(Repeat, RepeatNumbersMayBeInNames) {
  EXPECT_EQ(Tensors("modules:\n"
                    "  h_{i}:\n"
                    "    repeat: {i: 2}\n"
                    "    \"{2 * j + i}.c\":\n"
                    "      repeat: {j: 2}\n"
                    "      w: {shape: [10 * i + j + 1], init: zeros}\n"),
            "h_0.0.c.w f32 [1] constant(0) ()\n"
            "h_0.2.c.w f32 [2] constant(0) ()\n"
            "h_1.1.c.w f32 [11] constant(0) ()\n"
            "h_1.3.c.w f32 [12] constant(0) ()\n");
}

TEST(Repeat, ChecksRepeatNumbersInNames) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a_{i}: {w: {shape: [1], init: zeros}}\n"
                     "  b_{i: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
                     "  c/{i}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
                     "  d_{i}: {shape: [1], init: zeros}\n"
                     "  e_{i +}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"),
            "x.yaml:5:3: error: `a_{i}` has the number of a repeat in its name, but no `repeat`\n"
            "    a_{i}: {w: {shape: [1], init: zeros}}\n"
            "    ^^^^^\n"
            "  hint: add a repeat, such as `repeat: {layer: 12}`\n"
            "x.yaml:6:3: error: `b_{i` has a `{` without its `}`\n"
            "    b_{i: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "    ^^^^\n"
            "x.yaml:7:3: error: name `c/0` has a slash\n"
            "    c/{i}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "    ^^^^^\n"
            "  hint: separate the parts of a path by dots\n"
            "x.yaml:8:5: error: name `d_{i}` has the character `{`\n"
            "    d_{i}: {shape: [1], init: zeros}\n"
            "      ^\n"
            "  hint: names use letters, digits, `_` and `-`, with dots between parts\n"
            "x.yaml:9:8: error: expected a number, a name or `(`, but the expression ends\n"
            "    e_{i +}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "         ^\n");
  EXPECT_EQ(Messages("modules:\n"
                     "  a_{i - 1}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
                     "  b_{j}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
                     "  c_{7}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"),
            "x.yaml:5:6: error: a number in a path must be at least 0, but `i - 1` is -1\n"
            "    a_{i - 1}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "       ^^^^^\n"
            "x.yaml:6:6: error: unknown name `j`\n"
            "    b_{j}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "       ^\n"
            "  hint: the only one is `i`\n"
            "x.yaml:7:27: error: two tensors have the path `c_7.w`\n"
            "    c_{7}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "                            ^\n"
            "x.yaml:7:27: note: the first one is here\n"
            "    c_{7}: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "                            ^\n");
}

TEST(Repeat, MistakesInRepeatsAreReportedOnce) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a:\n"
                     "    repeat: {i: 100}\n"
                     "    w: {shape: [x], init: zeros}\n"
                     "    v: {shape: [y], init: zeros}\n"),
            "x.yaml:7:17: error: unknown name `x`\n"
            "      w: {shape: [x], init: zeros}\n"
            "                  ^\n"
            "  hint: the only one is `i`\n"
            "x.yaml:8:17: error: unknown name `y`\n"
            "      v: {shape: [y], init: zeros}\n"
            "                  ^\n"
            "  hint: the only one is `i`\n");
}

TEST(Repeat, RepeatVariableIsLimitedToItsModule) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a:\n"
                     "    repeat: {layer: 2}\n"
                     "    w: {shape: [layer + 1], init: zeros}\n"
                     "  v: {shape: [layer], init: zeros}\n"),
            "x.yaml:8:15: error: unknown name `layer`\n"
            "    v: {shape: [layer], init: zeros}\n"
            "                ^^^^^\n"
            "  hint: `layer` is the variable of the repeat `a`, and is only known inside it\n");
}

TEST(Repeat, RepeatVariableMustNotHideAnotherName) {
  EXPECT_EQ(Messages("vars: {n: 2}\n"
                     "modules:\n"
                     "  a:\n"
                     "    repeat: {n: 2}\n"
                     "    w: {shape: [1], init: zeros}\n"
                     "  b:\n"
                     "    repeat: {i: 2}\n"
                     "    c:\n"
                     "      repeat: {i: 2}\n"
                     "      w: {shape: [1], init: zeros}\n"),
            "x.yaml:7:14: error: `n` already names a variable or an outer repeat\n"
            "      repeat: {n: 2}\n"
            "               ^\n"
            "  hint: choose another name for this repeat\n"
            "x.yaml:12:16: error: `i` already names a variable or an outer repeat\n"
            "        repeat: {i: 2}\n"
            "                 ^\n"
            "  hint: choose another name for this repeat\n");
}

TEST(Repeat, SiblingRepeatsMayShareAVariable) {
  EXPECT_EQ(Tensors("modules:\n"
                    "  a: {repeat: {i: 1}, w: {shape: [1], init: zeros}}\n"
                    "  b: {repeat: {i: 1}, w: {shape: [1], init: zeros}}\n"),
            "a.0.w f32 [1] constant(0) ()\n"
            "b.0.w f32 [1] constant(0) ()\n");
}

TEST(Repeat, RepeatCountsHaveLimits) {
  EXPECT_EQ(
      Messages("modules:\n"
               "  a: {repeat: {i: 0}, w: {shape: [1], init: zeros}}\n"
               "  b: {repeat: {i: 4000001}, w: {shape: [1], init: zeros}}\n"
               "  c: {repeat: {i: 2.5}, w: {shape: [1], init: zeros}}\n"),
      "x.yaml:5:19: error: the count of `i` must be between 1 and 4000000, but it is 0\n"
      "    a: {repeat: {i: 0}, w: {shape: [1], init: zeros}}\n"
      "                    ^\n"
      "x.yaml:6:19: error: the count of `i` must be between 1 and 4000000, but it is 4000001\n"
      "    b: {repeat: {i: 4000001}, w: {shape: [1], init: zeros}}\n"
      "                    ^^^^^^^\n"
      "x.yaml:7:19: error: the count of `i` must be a whole number, but it is 2.5\n"
      "    c: {repeat: {i: 2.5}, w: {shape: [1], init: zeros}}\n"
      "                    ^^^\n");
}

TEST(Repeat, NestedRepeatsStayWithinTheTensorLimit) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a:\n"
                     "    repeat: {i: 2000}\n"
                     "    b:\n"
                     "      repeat: {j: 1001}\n"
                     "      v: {shape: [1], init: zeros}\n"
                     "      w: {shape: [1], init: zeros}\n"),
            "x.yaml:8:19: error: this makes 2000 × 1001 × 2 tensors, but a spec may have at most "
            "4000000\n"
            "        repeat: {j: 1001}\n"
            "                    ^^^^\n");
}

TEST(Repeat, SiblingRepeatsStayWithinTheTensorLimit) {
  EXPECT_EQ(
      Messages("modules:\n"
               "  a: {repeat: {i: 2}, w: {shape: [], init: zeros}}\n"
               "  b: {repeat: {i: 3999999}, w: {shape: [], init: zeros}}\n"
               "  c: {repeat: {i: 2000000}, v: {shape: [], init: zeros}, w: {shape: [], init: "
               "zeros}}\n"),
      "x.yaml:6:19: error: this makes 3999999 × 1 tensors after 2 others, but a spec may have "
      "at most 4000000\n"
      "    b: {repeat: {i: 3999999}, w: {shape: [], init: zeros}}\n"
      "                    ^^^^^^^\n"
      "x.yaml:7:19: error: this makes 2000000 × 2 tensors after 2 others, but a spec may have "
      "at most 4000000\n"
      "    c: {repeat: {i: 2000000}, v: {shape: [], init: zeros}, w: {shape: [], init: zeros}}\n"
      "                    ^^^^^^^\n");
}

// Variables.

TEST(Vars, VariablesMayBeInAnyOrder) {
  EXPECT_EQ(Tensors("vars: {a: b * 2, b: c + 1, c: 3}\n"
                    "modules: {w: {shape: [a], init: zeros}}\n"),
            "w f32 [8] constant(0) ()\n");
}

TEST(Vars, EachCycleOfVariablesIsOneMistake) {
  EXPECT_EQ(Messages("vars: {a: b, b: c, c: a, d: d + 1, e: a}\n"),
            "x.yaml:4:8: error: `a` is defined by itself: a → b → c → a\n"
            "  vars: {a: b, b: c, c: a, d: d + 1, e: a}\n"
            "         ^\n"
            "x.yaml:4:26: error: `d` is defined by itself\n"
            "  vars: {a: b, b: c, c: a, d: d + 1, e: a}\n"
            "                           ^\n");
}

TEST(Vars, UnusedVariablesAreEvaluated) {
  EXPECT_EQ(Messages("vars: {a: 1 / 0, b: a + 1}\n"),
            "x.yaml:4:11: error: division by zero in `1 / 0`\n"
            "  vars: {a: 1 / 0, b: a + 1}\n"
            "            ^^^^^\n");
}

// Makes `links` variables, each one more than the next.
std::string Chain(int links) {
  std::string text = "vars:\n";
  for (int i = links; i > 0; --i) {
    text += fmt::format("  v{}: v{} + 1\n", i, i - 1);
  }
  return text + fmt::format("  v0: 1\nmodules: {{w: {{shape: [v{}], init: zeros}}}}\n", links);
}

TEST(Vars, LongChainsDoNotExhaustTheStack) {
  EXPECT_EQ(Tensors(Chain(200)), "w f32 [201] constant(0) ()\n");
  const std::string messages = Messages(Chain(100'000));
  EXPECT_TRUE(
      messages.starts_with("x.yaml:261:3: error: `v99744` depends on a chain of 256 "
                           "variables\n"))
      << messages;
}

// Initializers by name.

TEST(NamedInit, NamedInitializersMayNameAnother) {
  EXPECT_EQ(Tensors("init: {a: b, b: c, c: {normal: {std: 1}}}\n"
                    "modules: {w: {shape: [2], init: a}}\n"),
            "w f32 [2] normal(0, 1) ()\n");
}

TEST(NamedInit, CyclesOfNamedInitializersAreReportedOnce) {
  const std::string messages = Messages(
      "init: {a: b, b: a}\n"
      "modules: {v: {shape: [2], init: a}, w: {shape: [2], init: a}}\n");
  EXPECT_NE(messages.find("is defined by itself"), std::string::npos) << messages;
  EXPECT_EQ(messages.find("error:"), messages.rfind("error:")) << messages;
}

TEST(NamedInit, MistakesInNamedInitializersAreReportedOnce) {
  EXPECT_EQ(Messages("init: {base: {normal: {std: -1}}}\n"
                     "modules:\n"
                     "  v: {shape: [2], init: base}\n"
                     "  w: {shape: [2], init: base}\n"),
            "x.yaml:4:29: error: `std` is -1, but must not be negative\n"
            "  init: {base: {normal: {std: -1}}}\n"
            "                              ^^\n");
}

TEST(NamedInit, NamedInitializersTakeNoArguments) {
  EXPECT_EQ(Messages("init: {base: {normal: {std: 1}}}\n"
                     "modules: {w: {shape: [2], init: {base: {std: 2}}}}\n"),
            "x.yaml:5:41: error: `base` is an initializer of this spec and takes no arguments\n"
            "  modules: {w: {shape: [2], init: {base: {std: 2}}}}\n"
            "                                          ^^^\n");
}

TEST(NamedInit, NamedInitializersMustNotHideBuiltInOnes) {
  EXPECT_EQ(Messages("init: {normal: {uniform: {low: 0, high: 1}}}\n"
                     "modules: {w: {shape: [2], init: zeros}}\n"),
            "x.yaml:4:8: error: `normal` is a built-in initializer\n"
            "  init: {normal: {uniform: {low: 0, high: 1}}}\n"
            "         ^^^^^^\n"
            "  hint: choose another name\n");
}

TEST(NamedInit, UnknownInitializersGetASuggestion) {
  EXPECT_EQ(Messages("init: {embedding: {normal: {std: 1}}}\n"
                     "modules: {w: {shape: [2], init: embeding}}\n"),
            "x.yaml:5:33: error: unknown initializer `embeding`\n"
            "  modules: {w: {shape: [2], init: embeding}}\n"
            "                                  ^^^^^^^^\n"
            "  hint: did you mean `embedding`?\n");
}

// Keys.

TEST(Key, KeysContainRepeatNumbers) {
  EXPECT_EQ(Tensors("modules:\n"
                    "  a:\n"
                    "    repeat: {i: 2}\n"
                    "    b:\n"
                    "      repeat: {j: 2}\n"
                    "      w: {shape: [1], init: zeros, key: \"old.{i}.{j}.{i}.w\"}\n"),
            "a.0.b.0.w f32 [1] constant(0) () key old.0.0.0.w\n"
            "a.0.b.1.w f32 [1] constant(0) () key old.0.1.0.w\n"
            "a.1.b.0.w f32 [1] constant(0) () key old.1.0.1.w\n"
            "a.1.b.1.w f32 [1] constant(0) () key old.1.1.1.w\n");
}

TEST(Key, KeysKnowOnlyEnclosingRepeats) {
  EXPECT_EQ(Messages("vars: {n: 2}\n"
                     "modules:\n"
                     "  a:\n"
                     "    repeat: {layer: n}\n"
                     "    w: {shape: [1], init: zeros, key: \"old.{layer}.{layr}.w\"}\n"
                     "  b: {shape: [1], init: zeros, key: \"{n}\"}\n"),
            "x.yaml:8:39: error: `{layr}` in `key` does not name a repeat around this tensor\n"
            "      w: {shape: [1], init: zeros, key: \"old.{layer}.{layr}.w\"}\n"
            "                                        ^^^^^^^^^^^^^^^^^^^^^^\n"
            "  hint: did you mean `layer`?\n"
            "x.yaml:9:37: error: `{n}` in `key` does not name a repeat around this tensor\n"
            "    b: {shape: [1], init: zeros, key: \"{n}\"}\n"
            "                                      ^^^^^\n"
            "  hint: no `repeat` is around it\n");
}

TEST(Key, KeysDetermineTheRandomStream) {
  const GraphOutcome outcome = BuildRest(
      "seed: 5\n"
      "modules:\n"
      "  old: {shape: [1], init: {normal: {std: 1}}}\n"
      "  new: {shape: [1], init: {normal: {std: 1}}, key: before}\n"
      "  none: {shape: [1], init: ones}\n");
  ASSERT_EQ(outcome.graph.tensors.size(), 3u) << outcome.messages;
  EXPECT_EQ(outcome.graph.tensors[0].stream().key, KeyOf(5, "old"));
  EXPECT_EQ(outcome.graph.tensors[1].stream().key, KeyOf(5, "before"));
  EXPECT_EQ(outcome.graph.tensors[2].stream().key, 0u);
}

TEST(Key, TensorsMustNotShareAKey) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a: {shape: [1], init: {normal: {std: 1}}}\n"
                     "  b: {shape: [1], init: {normal: {std: 2}}, key: a}\n"),
            "x.yaml:6:3: error: `a` and `b` would be drawn from the same random stream\n"
            "    b: {shape: [1], init: {normal: {std: 2}}, key: a}\n"
            "    ^\n"
            "  hint: give one of them another `key`\n"
            "x.yaml:5:3: note: the other one is here\n"
            "    a: {shape: [1], init: {normal: {std: 1}}}\n"
            "    ^\n");
  // Finds each of several shared streams.
  const std::string several = Messages(
      "modules:\n"
      "  a: {shape: [1], init: {normal: {std: 1}}}\n"
      "  b: {shape: [1], init: {normal: {std: 2}}, key: a}\n"
      "  c: {shape: [1], init: {normal: {std: 1}}}\n"
      "  d: {shape: [1], init: {normal: {std: 2}}, key: c}\n"
      "  e: {shape: [1], init: {normal: {std: 1}}}\n"
      "  f: {shape: [1], init: {normal: {std: 2}}, key: e}\n");
  for (const char* pair : {"`a` and `b`", "`c` and `d`", "`e` and `f`"}) {
    EXPECT_NE(several.find(pair), several.npos) << several;
  }
  // Constants draw nothing.
  EXPECT_EQ(Messages("modules:\n"
                     "  a: {shape: [1], init: ones}\n"
                     "  b: {shape: [1], init: ones, key: a}\n"),
            "");
}

// Sharding.

constexpr char kTwoAxes[] = "mesh: {axes: {fsdp: 2, tensor: 4}}\n";

TEST(GraphSharding, FirstApplicableRuleWins) {
  EXPECT_EQ(
      Tensors(std::string(kTwoAxes) + "rules: [{a: fsdp}, {b: fsdp}, {b: tensor}, {c: null}]\n"
                                      "modules:\n"
                                      "  u: {shape: [8, 8], axes: [a, b], init: zeros}\n"
                                      "  v: {shape: [8, 8], axes: [b, a], init: zeros}\n"
                                      "  w: {shape: [8, 8], axes: [b, null], init: zeros}\n"
                                      "  x: {shape: [8], axes: [c], init: zeros}\n"
                                      "  y: {shape: [8], init: zeros}\n"),
      "u f32 [8, 8] constant(0) (fsdp) (tensor)\n"
      "v f32 [8, 8] constant(0) (tensor) (fsdp)\n"
      "w f32 [8, 8] constant(0) (fsdp) ()\n"
      "x f32 [8] constant(0) ()\n"
      "y f32 [8] constant(0) ()\n");
}

TEST(GraphSharding, ShortShardListLeavesOtherDimensionsWhole) {
  EXPECT_EQ(
      Tensors(std::string(kTwoAxes) + "modules:\n"
                                      "  u: {shape: [8, 8], shard: [[tensor, fsdp]], init: zeros}\n"
                                      "  v: {shape: [8, 8], shard: [null, fsdp], init: zeros}\n"
                                      "  w: {shape: [8, 8], shard: [], init: zeros}\n"),
      "u f32 [8, 8] constant(0) (tensor, fsdp) ()\n"
      "v f32 [8, 8] constant(0) () (fsdp)\n"
      "w f32 [8, 8] constant(0) () ()\n");
}

TEST(GraphSharding, UnknownMeshAxesGetASuggestion) {
  EXPECT_EQ(
      Messages(std::string(kTwoAxes) + "modules: {w: {shape: [8], shard: [tensr], init: zeros}}\n"),
      "x.yaml:5:35: error: unknown mesh axis `tensr`\n"
      "  modules: {w: {shape: [8], shard: [tensr], init: zeros}}\n"
      "                                    ^^^^^\n"
      "  hint: did you mean `tensor`?\n");
  EXPECT_EQ(Messages("modules: {w: {shape: [8], shard: [tensor], init: zeros}}\n"),
            "x.yaml:4:35: error: unknown mesh axis `tensor`\n"
            "  modules: {w: {shape: [8], shard: [tensor], init: zeros}}\n"
            "                                    ^^^^^^\n"
            "  hint: the spec declares no mesh axis\n");
}

TEST(GraphSharding, MeshAxisShardsATensorOnce) {
  EXPECT_EQ(Messages(std::string(kTwoAxes) +
                     "modules: {w: {shape: [8, 8], shard: [fsdp, [tensor, fsdp]], init: zeros}}\n"),
            "x.yaml:5:53: error: mesh axis `fsdp` would shard a tensor twice\n"
            "  modules: {w: {shape: [8, 8], shard: [fsdp, [tensor, fsdp]], init: zeros}}\n"
            "                                                      ^^^^\n"
            "  hint: each mesh axis may shard one dimension of a tensor, once\n");
}

TEST(GraphSharding, LogicalAxesNeedARule) {
  EXPECT_EQ(
      Messages(std::string(kTwoAxes) + "rules: [{embed: fsdp}]\n"
                                       "modules: {w: {shape: [8], axes: [embd], init: zeros}}\n"),
      "x.yaml:6:34: error: no rule names the logical axis `embd`\n"
      "  modules: {w: {shape: [8], axes: [embd], init: zeros}}\n"
      "                                   ^^^^\n"
      "  hint: did you mean `embed`? `{embd: null}` in `rules` keeps it whole\n");
}

TEST(GraphSharding, RulesMustNameALogicalAxis) {
  EXPECT_EQ(
      Messages(std::string(kTwoAxes) + "rules: [{embed: fsdp}, {embde: tensor}]\n"
                                       "modules: {w: {shape: [8], axes: [embed], init: zeros}}\n"),
      "x.yaml:5:25: error: no tensor has the logical axis `embde`\n"
      "  rules: [{embed: fsdp}, {embde: tensor}]\n"
      "                          ^^^^^\n"
      "  hint: did you mean `embed`?\n");
}

TEST(Uneven, UnevenShardsAreRejectedUnlessAllowed) {
  EXPECT_EQ(Messages(std::string(kTwoAxes) +
                     "modules:\n"
                     "  u: {shape: [6, 3], shard: [tensor, fsdp], init: zeros}\n"
                     "  v: {shape: [12], shard: [[fsdp, tensor]], init: zeros}\n"
                     "  w: {shape: [5], shard: [fsdp], init: zeros, uneven: chunk}\n"),
            "x.yaml:6:15: error: mesh axis `tensor` (4) does not divide dimension 0 of `u` (6)\n"
            "    u: {shape: [6, 3], shard: [tensor, fsdp], init: zeros}\n"
            "                ^\n"
            "  hint: use a multiple of 4, leave the dimension whole, or allow shorter last shards "
            "with `uneven: chunk`\n"
            "x.yaml:6:18: error: mesh axis `fsdp` (2) does not divide dimension 1 of `u` (3)\n"
            "    u: {shape: [6, 3], shard: [tensor, fsdp], init: zeros}\n"
            "                   ^\n"
            "  hint: use a multiple of 2, leave the dimension whole, or allow shorter last shards "
            "with `uneven: chunk`\n"
            "x.yaml:7:15: error: mesh axes `fsdp` × `tensor` (8) do not divide dimension 0 of `v` "
            "(12)\n"
            "    v: {shape: [12], shard: [[fsdp, tensor]], init: zeros}\n"
            "                ^^\n"
            "  hint: use a multiple of 8, leave the dimension whole, or allow shorter last shards "
            "with `uneven: chunk`\n");
}

TEST(Uneven, UnevenOfATensorOverridesTheSpecs) {
  EXPECT_EQ(Messages("uneven: chunk\n" + std::string(kTwoAxes) +
                     "modules:\n"
                     "  v: {shape: [5], shard: [fsdp], init: zeros}\n"
                     "  w: {shape: [5], shard: [fsdp], init: zeros, uneven: error}\n"),
            "x.yaml:8:15: error: mesh axis `fsdp` (2) does not divide dimension 0 of `w` (5)\n"
            "    w: {shape: [5], shard: [fsdp], init: zeros, uneven: error}\n"
            "                ^\n"
            "  hint: use a multiple of 2, leave the dimension whole, or allow shorter last shards "
            "with `uneven: chunk`\n");
}

TEST(GraphSegments, SegmentsNeedAShardedDimension) {
  EXPECT_EQ(
      Tensors(
          "mesh: {axes: {fsdp: 2, tensor: 4, one: 1}}\n"
          "vars: {two: 2}\n"
          "modules:\n"
          "  u: {shape: [16, 4], init: zeros, shard: [{axes: [tensor, fsdp], segments: two}]}\n"
          "  v: {shape: [16, 4], init: zeros, shard: [{axes: one, segments: 3}, {axes: fsdp}]}\n"
          "  w: {shape: [9], uneven: chunk, init: zeros, shard: [{axes: fsdp, segments: 4}]}\n"),
      "u f32 [16, 4] constant(0) (tensor, fsdp / 2) ()\n"
      "v f32 [16, 4] constant(0) (one) (fsdp)\n"
      "w f32 [9] constant(0) (fsdp / 4)\n");
}

TEST(GraphSegments, ReportsMistakesInSegments) {
  EXPECT_EQ(
      Messages(
          std::string(kTwoAxes) +
          "modules:\n"
          "  a: {shape: [8], init: zeros, shard: [{axes: fsdp, segments: 0}]}\n"
          "  b: {shape: [8], init: zeros, shard: [{axes: fsdp, segment: 2}]}\n"
          "  c: {shape: [8], init: zeros, shard: [{segments: 2}]}\n"
          "  d: {shape: [8], init: zeros, shard: [{axes: tensor, segments: 4}]}\n"
          "  e: {shape: [2], init: zeros, shard: [{axes: fsdp, segments: 3}], uneven: chunk}\n"),
      "x.yaml:6:63: error: `segments` must be between 1 and 65536, but it is 0\n"
      "    a: {shape: [8], init: zeros, shard: [{axes: fsdp, segments: 0}]}\n"
      "                                                                ^\n"
      "x.yaml:7:53: error: unknown key `segment` in an entry of `shard`\n"
      "    b: {shape: [8], init: zeros, shard: [{axes: fsdp, segment: 2}]}\n"
      "                                                      ^^^^^^^\n"
      "  hint: did you mean `segments`?\n"
      "x.yaml:8:40: error: an entry of `shard` has no `axes`\n"
      "    c: {shape: [8], init: zeros, shard: [{segments: 2}]}\n"
      "                                         ^^^^^^^^^^^^^\n"
      "  hint: write it as in `{axes: tensor, segments: 2}`\n"
      "x.yaml:9:15: error: mesh axis `tensor` (4) of 4 segments does not divide dimension 0 of `d` "
      "(8)\n"
      "    d: {shape: [8], init: zeros, shard: [{axes: tensor, segments: 4}]}\n"
      "                ^\n"
      "  hint: use a multiple of 16, leave the dimension whole, or allow shorter last shards with "
      "`uneven: chunk`\n"
      "x.yaml:10:39: error: dimension 0 of `e` (2) cannot have 3 segments\n"
      "    e: {shape: [2], init: zeros, shard: [{axes: fsdp, segments: 3}], uneven: chunk}\n"
      "                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
      "  hint: use fewer: each has at least one element\n");
}

constexpr char kPipe[] = "mesh: {axes: {pipe: 4, tensor: 2}}\n";

TEST(GraphStage, InnermostStageWins) {
  EXPECT_EQ(Tensors(std::string(kPipe) +
                    "modules:\n"
                    "  a: {shape: [4], init: zeros}\n"
                    "  m:\n"
                    "    repeat: {layer: 2}\n"
                    "    stage: {pipe: layer * mesh_pipe / 2}\n"
                    "    b: {shape: [4], init: zeros, shard: [tensor]}\n"
                    "    c: {shape: [4], init: zeros, stage: {tensor: 1, pipe: [3, 0, layer]}}\n"
                    "    n: {stage: null, d: {shape: [4], init: zeros}}\n"
                    "    e: {shape: [4], init: zeros, stage: {pipe: [0, 1, 2, 3]}}\n"),
            "a f32 [4] constant(0) ()\n"
            "m.0.b f32 [4] constant(0) (tensor) on pipe 0\n"
            "m.0.c f32 [4] constant(0) () on pipe 0, 3 on tensor 1\n"
            "m.0.n.d f32 [4] constant(0) ()\n"
            "m.0.e f32 [4] constant(0) ()\n"
            "m.1.b f32 [4] constant(0) (tensor) on pipe 2\n"
            "m.1.c f32 [4] constant(0) () on pipe 0, 1, 3 on tensor 1\n"
            "m.1.n.d f32 [4] constant(0) ()\n"
            "m.1.e f32 [4] constant(0) ()\n");
}

TEST(GraphStage, ReportsMistakesInStages) {
  EXPECT_EQ(
      Messages(std::string(kPipe) +
               "modules:\n"
               "  a: {shape: [4], init: zeros, stage: {pipe: 4}}\n"
               "  b: {shape: [4], init: zeros, stage: {pip: 0}}\n"
               "  c: {shape: [4], init: zeros, stage: {pipe: []}}\n"
               "  d: {shape: [4], init: zeros, stage: 1}\n"
               "  e: {shape: [4], init: zeros, stage: {pipe: 0}, shard: [pipe]}\n"
               "  m: {repeat: {i: 9}, stage: {pipe: i}, f: {shape: [4], init: zeros}}\n"),
      "x.yaml:6:46: error: the index on mesh axis `pipe` (4) must be between 0 and 3, but it is 4\n"
      "    a: {shape: [4], init: zeros, stage: {pipe: 4}}\n"
      "                                               ^\n"
      "x.yaml:7:40: error: unknown mesh axis `pip`\n"
      "    b: {shape: [4], init: zeros, stage: {pip: 0}}\n"
      "                                         ^^^\n"
      "  hint: did you mean `pipe`?\n"
      "x.yaml:8:46: error: `pipe` lists no index\n"
      "    c: {shape: [4], init: zeros, stage: {pipe: []}}\n"
      "                                               ^^\n"
      "  hint: list an index, or leave the tensor out with `when: 0`\n"
      "x.yaml:9:39: error: `stage` must be a mapping, not `1`\n"
      "    d: {shape: [4], init: zeros, stage: 1}\n"
      "                                        ^\n"
      "  hint: give indices on mesh axes, such as `{pipe: 0}`\n"
      "x.yaml:10:57: error: mesh axis `pipe` would shard dimension 0 of `e`, whose stage is index "
      "0 of that axis\n"
      "    e: {shape: [4], init: zeros, stage: {pipe: 0}, shard: [pipe]}\n"
      "                                                          ^^^^^^\n"
      "  hint: a mesh axis can either shard a tensor or determine which ranks hold it\n"
      "x.yaml:11:37: error: the index on mesh axis `pipe` (4) must be between 0 and 3, but `i` is "
      "4\n"
      "    m: {repeat: {i: 9}, stage: {pipe: i}, f: {shape: [4], init: zeros}}\n"
      "                                      ^\n");
}

TEST(GraphStage, ViewsInheritTheStageOfTheirTensors) {
  const std::string spec = "shardinit: 1\nname: x\ndtype: f32\n" + std::string(kPipe) +
                           "modules:\n"
                           "  a: {shape: [4], init: zeros, stage: {pipe: 1}}\n"
                           "  b: {shape: [4], init: zeros, stage: {pipe: 1}}\n"
                           "  c: {shape: [4], init: zeros, stage: {pipe: 2}}\n"
                           "layouts:\n"
                           "  l:\n"
                           "    keep: [c]\n"
                           "    ab: {from: {concat: {axis: 0, of: [a, b]}}}\n"
                           "    t: {from: {transpose: {of: a}}}\n"
                           "    x: {from: {concat: {axis: 0, of: [a, c]}}";
  EXPECT_EQ(PrintTensors(BuildText(spec + ", stage: null}\n", {}, {}, "l").graph),
            "c f32 [4] constant(0) () on pipe 2\n"
            "ab f32 [8] constant(0) () on pipe 1\n"
            "t f32 [4] constant(0) () on pipe 1\n"
            "x f32 [8] constant(0) ()\n");
  EXPECT_EQ(BuildText(spec + "}\n", {}, {}, "l").messages,
            "x.yaml:14:5: error: the tensors of `x` are on different stages\n"
            "      x: {from: {concat: {axis: 0, of: [a, c]}}}\n"
            "      ^\n"
            "  hint: set `stage` to choose the ranks that hold it; `stage: null` means all\n");
}

TEST(GraphMesh, CommandLineReplacesTheMesh) {
  const GraphOutcome outcome =
      BuildRest(std::string(kTwoAxes) + "modules: {w: {shape: [9], shard: [fsdp], init: zeros}}\n",
                {}, "tensor=1,fsdp=3");
  EXPECT_EQ(outcome.messages, "");
  EXPECT_EQ(Print(outcome.graph),
            "x seed 0 philox4x32 mesh tensor=1 fsdp=3 dedupe\n"
            "w f32 [9] constant(0) (fsdp)\n");
}

TEST(GraphMesh, MeshSizeHasALimit) {
  EXPECT_EQ(Messages("mesh: {axes: {a: 4096, b: 4096, c: 2}}\n"),
            "x.yaml:4:33: error: the mesh has more than 16777216 ranks\n"
            "  mesh: {axes: {a: 4096, b: 4096, c: 2}}\n"
            "                                  ^\n");
  EXPECT_EQ(Messages("mesh: {axes: {a: 4096, b: 4096, c: 1}}\n"), "");
}

// Layouts.

constexpr char kLayoutHead[] =
    "shardinit: 1\n"
    "name: x\n"
    "dtype: f32\n"
    "modules: {w: {shape: [4, 8], init: zeros}}\n"
    "layouts:\n"
    "  l:\n";

std::string LayoutMessages(const std::string& members) {
  return BuildText(kLayoutHead + members, {}, {}, "l", false).messages;
}

TEST(LayoutCoverage, LayoutCoverageCountsTiedElementsOnce) {
  EXPECT_EQ(
      LayoutMessages("    a: {from: {slice: {axis: 0, stop: 2, of: w}}}\n"
                     "    b: {from: {slice: {axis: 0, stop: 2, of: w}}}\n"),
      "x.yaml:6:3: error: layout `l` stores 16 of the 32 elements of `w`, some of them twice\n"
      "    l:\n"
      "    ^\n"
      "  hint: add it, or list it under `omit`\n");
  EXPECT_EQ(LayoutMessages("    a: {from: {slice: {axis: 0, stop: 2, of: w}}}\n"),
            "x.yaml:6:3: error: layout `l` stores 16 of the 32 elements of `w`\n"
            "    l:\n"
            "    ^\n"
            "  hint: add it, or list it under `omit`\n");
}

TEST(LayoutCoverage, OverlappingRowsAndColumnsMayCoverATensor) {
  const std::string rows = "    a: {from: {slice: {axis: 0, stop: 3, of: w}}}\n";
  EXPECT_EQ(
      LayoutMessages(rows + "    b: {from: {slice: {axis: 1, start: 1, stop: 8, of: w}}}\n"),
      "x.yaml:6:3: error: layout `l` stores 31 of the 32 elements of `w`, some of them twice\n"
      "    l:\n"
      "    ^\n"
      "  hint: add it, or list it under `omit`\n");
  EXPECT_EQ(LayoutMessages(rows + "    b: {from: {slice: {axis: 0, start: 1, stop: 4, of: w}}}\n"),
            "");
  EXPECT_EQ(LayoutMessages("    a: {from: w}\n    b: {from: w}\n"), "");
}

TEST(OtherLayouts, UnchosenLayoutsDoNotAffectTheChosenOne) {
  const auto messages = [](const std::string& layout, bool all_layouts) {
    return BuildText(
               "shardinit: 1\n"
               "name: x\n"
               "dtype: f32\n"
               "mesh: {axes: {fsdp: 2}}\n"
               "rules: [{embed: fsdp}, {other: fsdp}]\n"
               "modules: {w: {shape: [4], axes: [embed], init: zeros}}\n"
               "layouts:\n"
               "  first: {w: {from: w, axes: [embd]}}\n"
               "  second: {w: {from: w, axes: [embd]}}\n"
               "  third: {w: {from: w, axes: [other]}}\n",
               {}, {}, layout, all_layouts)
        .messages;
  };
  const std::string misspelt =
      "error: no rule names the logical axis `embd`\n"
      "    second: {w: {from: w, axes: [embd]}}\n";
  EXPECT_EQ(messages("", false), "");
  EXPECT_EQ(messages("third", false), "");
  EXPECT_NE(messages("second", false).find(misspelt), std::string::npos);
  EXPECT_EQ(messages("second", false).find("first"), std::string::npos);
  EXPECT_NE(messages("", true).find(misspelt), std::string::npos);
  EXPECT_NE(messages("", true).find("  first: {w"), std::string::npos);
}

// Clashes.

TEST(Paths, TensorPathsAreUnique) {
  EXPECT_EQ(Messages("modules:\n"
                     "  a.0.w: {shape: [1], init: zeros}\n"
                     "  a: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"),
            "x.yaml:6:23: error: two tensors have the path `a.0.w`\n"
            "    a: {repeat: {i: 2}, w: {shape: [1], init: zeros}}\n"
            "                        ^\n"
            "x.yaml:5:3: note: the first one is here\n"
            "    a.0.w: {shape: [1], init: zeros}\n"
            "    ^^^^^\n");
}

TEST(Paths, TensorPathsMustNotPrefixOthers) {
  for (const bool group_first : {false, true}) {
    const std::string tensor = "  a.b: {shape: [1], init: zeros}\n";
    const std::string inner = "  a.b.c.d: {shape: [1], init: zeros}\n";
    const std::string between = "  a.x: {shape: [1], init: zeros}\n";
    const std::string messages = Messages("modules:\n" + (group_first ? inner : tensor) + between +
                                          (group_first ? tensor : inner));
    EXPECT_NE(messages.find("error: `a.b` is a tensor and also the group of `a.b.c.d`\n"),
              std::string::npos)
        << messages;
    EXPECT_EQ(messages.find("error:"), messages.rfind("error:")) << messages;
  }
  // A common prefix is not a group.
  EXPECT_EQ(Messages("modules:\n"
                     "  a.b: {shape: [1], init: zeros}\n"
                     "  a.bc: {shape: [1], init: zeros}\n"
                     "  a.b-c.d: {shape: [1], init: zeros}\n"),
            "");
}

// Limits and types.

TEST(Limits, ShapesHaveLimits) {
  EXPECT_EQ(Messages("modules: {w: {shape: [2 - 2], init: zeros}}\n"),
            "x.yaml:4:23: error: dimension 0 must be at least 1, but `2 - 2` is 0\n"
            "  modules: {w: {shape: [2 - 2], init: zeros}}\n"
            "                        ^^^^^\n");
  EXPECT_EQ(Messages("modules: {w: {shape: [4611686018427387904], dtype: f16, init: zeros}}\n"),
            "x.yaml:4:22: error: this tensor has more than 2^63 - 1 bytes\n"
            "  modules: {w: {shape: [4611686018427387904], dtype: f16, init: zeros}}\n"
            "                       ^^^^^^^^^^^^^^^^^^^^^\n"
            "  hint: the dimensions up to here are 4611686018427387904\n");
  EXPECT_EQ(Messages("modules: {w: {shape: [4611686018427387903], dtype: f16, init: zeros}}\n"),
            "");
}

TEST(Limits, ModelSizeHasALimit) {
  EXPECT_EQ(Messages("modules:\n"
                     "  v: {shape: [1152921504606846975], init: zeros}\n"
                     "  w: {shape: [1152921504606846975], init: zeros}\n"
                     "  x: {shape: [2], init: zeros}\n"),
            "x.yaml:7:14: error: with this tensor the model has more than 2^63 - 1 bytes\n"
            "    x: {shape: [2], init: zeros}\n"
            "               ^^^\n");
}

TEST(Limits, NumberOfDimensionsHasALimit) {
  std::string shape = "1";
  for (int i = 1; i < 32; ++i) shape += ", 1";
  EXPECT_EQ(Messages("modules: {w: {shape: [" + shape + "], init: zeros}}\n"), "");
  const std::string messages = Messages("modules: {w: {shape: [" + shape + ", 1], init: zeros}}\n");
  EXPECT_NE(messages.find("33 dimensions, but at most 32 are allowed\n"), std::string::npos)
      << messages;
}

TEST(DTypes, UnknownDTypesGetASuggestion) {
  EXPECT_EQ(BuildText("shardinit: 1\nname: x\ndtype: fp32\n"
                      "modules: {v: {shape: [1], init: zeros}, w: {shape: [1], init: zeros}}\n")
                .messages,
            "x.yaml:3:8: error: unknown dtype `fp32`\n"
            "  dtype: fp32\n"
            "         ^^^^\n"
            "  hint: did you mean `f32`?\n");
}

TEST(Engine, UnknownEnginesGetASuggestion) {
  EXPECT_EQ(Messages("engine: philox\n"),
            "x.yaml:4:9: error: unknown engine `philox`\n"
            "  engine: philox\n"
            "          ^^^^^^\n"
            "  hint: did you mean `philox4x32`?\n");
}

TEST(Seed, SeedIsANonNegativeInteger) {
  for (const uint64_t seed :
       {uint64_t{0}, (uint64_t{1} << 63) - 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    const GraphOutcome outcome = BuildRest(fmt::format(
        "seed: {}\nmodules: {{w: {{shape: [1], init: {{normal: {{std: 1}}}}}}}}\n", seed));
    EXPECT_EQ(outcome.messages, "");
    ASSERT_EQ(outcome.graph.seed, seed);
    EXPECT_EQ(outcome.graph.tensors.at(0).stream().key, KeyOf(seed, "w"));
  }
  EXPECT_EQ(Messages("seed: 18446744073709551616\n"),
            "x.yaml:4:7: error: `seed` `18446744073709551616` does not fit in 64 bits\n"
            "  seed: 18446744073709551616\n"
            "        ^^^^^^^^^^^^^^^^^^^^\n"
            "  hint: the largest is 18446744073709551615\n");
  EXPECT_EQ(Messages("seed: 3 - 4\n"),
            "x.yaml:4:7: error: `seed` must be at least 0, but `3 - 4` is -1\n"
            "  seed: 3 - 4\n"
            "        ^^^^^\n");
}

TEST(Config, ConfigKeepsIntegersExactly) {
  EXPECT_EQ(
      BuildRest("config: {a: 18446744073709551615, b: -9223372036854775808, c: 9007199254740993}\n")
          .graph.config,
      "{\"a\":18446744073709551615,\"b\":-9223372036854775808,\"c\":9007199254740993}");
  EXPECT_EQ(Messages("config: {a: 99999999999999999999999}\n"),
            "x.yaml:4:13: error: `99999999999999999999999` does not fit in 64 bits\n"
            "  config: {a: 99999999999999999999999}\n"
            "              ^^^^^^^^^^^^^^^^^^^^^^^\n"
            "  hint: put it in quotes to keep its digits as text, or write it as a float, such as "
            "`1e20`\n");
  EXPECT_NE(Messages("config: {a: [-9223372036854775809]}\n"), "");
}

TEST(BuildGraph, ReportsAllMistakesTogether) {
  EXPECT_EQ(Messages("seed: -1\n"
                     "mesh: {axes: {fsdp: 0}}\n"
                     "modules:\n"
                     "  u: {shape: [4], init: normal}\n"
                     "  v: {shape: [4], shard: [tensor], init: zeros}\n"
                     "  w: {shape: [1 / 0], init: zeros}\n"),
            "x.yaml:4:7: error: `seed` must be at least 0, but it is -1\n"
            "  seed: -1\n"
            "        ^^\n"
            "x.yaml:5:21: error: axis `fsdp` must be between 1 and 16777216, but it is 0\n"
            "  mesh: {axes: {fsdp: 0}}\n"
            "                      ^\n"
            "x.yaml:7:25: error: `normal` needs `std`\n"
            "    u: {shape: [4], init: normal}\n"
            "                          ^^^^^^\n"
            "  hint: write `{normal: {std: …}}`\n"
            "x.yaml:8:27: error: unknown mesh axis `tensor`\n"
            "    v: {shape: [4], shard: [tensor], init: zeros}\n"
            "                            ^^^^^^\n"
            "  hint: the only one is `fsdp`\n"
            "x.yaml:9:15: error: division by zero in `1 / 0`\n"
            "    w: {shape: [1 / 0], init: zeros}\n"
            "                ^^^^^\n");
}

TEST(Init, InitialValuesMustFitTheDType) {
  EXPECT_EQ(Messages("modules:\n"
                     "  w: {shape: [2], dtype: f16, init: {constant: {value: 65505}}}\n"),
            "x.yaml:5:38: error: values of `w` reach 65505, but f16 ends at 65504\n"
            "    w: {shape: [2], dtype: f16, init: {constant: {value: 65505}}}\n"
            "                                       ^^^^^^^^\n"
            "  hint: choose a larger dtype or smaller parameters\n");
  EXPECT_EQ(Messages("modules:\n"
                     "  w: {shape: [2], dtype: f64, init: {constant: {value: 1e300}}}\n"),
            "");
}

}  // namespace
}  // namespace shardinit
