// Tests fan-based initializers: the origin of fans, each formula with hand-computed numbers, and
// every mistake as the user sees it.
#include <gtest/gtest.h>

#include "support/graph_text.h"

namespace shardinit {
namespace {

std::string FanLowered(const std::string& tensor, const std::string& top = "") {
  const GraphOutcome outcome = BuildRest(top + "modules: {w: {" + tensor + "}}\n");
  return outcome.messages.empty() ? Print(outcome.graph.tensors.at(0).distribution())
                                  : outcome.messages;
}

// A [48, 80] weight of torch has 80 inputs and 48 outputs.
std::string Torch(const std::string& init) {
  return FanLowered("shape: [48, 80], fans: out_in, init: " + init);
}

// The fan is the inverse of this variance.
std::string Scaled(const std::string& mode, const std::string& tensor) {
  return FanLowered("init: {variance_scaling: {mode: " + mode + ", distribution: normal}}, " +
                    tensor);
}

TEST(Xavier, XavierEqualsTorch) {
  // std = gain * sqrt(2 / (80 + 48)) = gain / 8
  EXPECT_EQ(Torch("xavier_normal"), "normal(0, 0.125)");
  EXPECT_EQ(Torch("{xavier_normal: {gain: 2}}"), "normal(0, 0.25)");
  // bound = gain * sqrt(6 / (fan_in + fan_out)), but as sqrt(3) * std.
  EXPECT_EQ(FanLowered("shape: [48, 48], init: {xavier_uniform: {gain: 2}}"),
            "uniform(-0.49999999999999994, 0.49999999999999994)");
  EXPECT_EQ(Torch("{xavier_uniform: {gain: 8}}"),
            "uniform(-1.7320508075688772, 1.7320508075688772)");
}

TEST(Xavier, XavierGainsFollowTheNonlinearity) {
  for (const char* name : {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
                           "conv_transpose2d", "conv_transpose3d", "sigmoid"}) {
    EXPECT_EQ(Torch("{xavier_normal: {gain: " + std::string(name) + "}}"), "normal(0, 0.125)");
  }
  // 5 / 3, sqrt(2), sqrt(2 / (1 + 0.01^2)) and 3 / 4, divided by 8.
  EXPECT_EQ(Torch("{xavier_normal: {gain: tanh}}"), "normal(0, 0.20833333333333334)");
  EXPECT_EQ(Torch("{xavier_normal: {gain: relu}}"), "normal(0, 0.1767766952966369)");
  EXPECT_EQ(Torch("{xavier_normal: {gain: leaky_relu}}"), "normal(0, 0.17676785712472942)");
  EXPECT_EQ(Torch("{xavier_normal: {gain: selu}}"), "normal(0, 0.09375)");
  EXPECT_EQ(Torch("{xavier_normal: {gain: 'selu'}}"), "normal(0, 0.09375)");
}

TEST(Xavier, GainOfZeroGivesZeros) {
  EXPECT_EQ(Torch("{xavier_normal: {gain: 0}}"), "normal(0, 0)");
  EXPECT_EQ(Torch("{xavier_uniform: {gain: 0}}"), "constant(0)");
}

TEST(Kaiming, KaimingEqualsTorch) {
  // std = sqrt(2) / sqrt(32) = 1 / 4
  const std::string w = "shape: [48, 32], fans: out_in, init: ";
  EXPECT_EQ(FanLowered(w + "kaiming_normal"), "normal(0, 0.25)");
  EXPECT_EQ(FanLowered(w + "{kaiming_normal: {a: 1}}"),
            "normal(0, 0.17677669529663687)");  // 1 / sqrt(32)
  // (5 / 3) / sqrt(48)
  EXPECT_EQ(FanLowered(w + "{kaiming_normal: {mode: fan_out, nonlinearity: tanh}}"),
            "normal(0, 0.2405626121623441)");
  // sqrt(6 / 24) = 1 / 2
  EXPECT_EQ(FanLowered("shape: [48, 24], fans: out_in, init: kaiming_uniform"),
            "uniform(-0.5, 0.5)");
  // As in torch.nn.Linear: 1 / sqrt(fan_in).
  EXPECT_EQ(FanLowered(w + "{kaiming_uniform: {a: sqrt(5)}}"),
            "uniform(-0.17677669529663684, 0.17677669529663684)");
}

TEST(VarianceScaling, VarianceScalingEqualsJaxAndKeras) {
  const std::string w = "fans: in_out, init: ";
  // sqrt(1 / 16) / 0.87962566103423978, and the same with 2 / 32.
  EXPECT_EQ(FanLowered(w + "lecun_normal, shape: [16, 9]"),
            "truncated_normal(0, 0.2842118085846391, -2, 2)");
  EXPECT_EQ(FanLowered(w + "he_normal, shape: [32, 9]"),
            "truncated_normal(0, 0.2842118085846391, -2, 2)");
  // sqrt(2 / (48 + 80)) / 0.87962566103423978
  EXPECT_EQ(FanLowered(w + "glorot_normal, shape: [48, 80]"),
            "truncated_normal(0, 0.14210590429231956, -2, 2)");
  // sqrt(3 / 48), sqrt(6 / 24), sqrt(6 / (16 + 80))
  EXPECT_EQ(FanLowered(w + "lecun_uniform, shape: [48, 9]"), "uniform(-0.25, 0.25)");
  EXPECT_EQ(FanLowered(w + "he_uniform, shape: [24, 9]"), "uniform(-0.5, 0.5)");
  EXPECT_EQ(FanLowered(w + "glorot_uniform, shape: [16, 80]"), "uniform(-0.25, 0.25)");
}

TEST(VarianceScaling, VarianceScalingHasModesAndDistributions) {
  const std::string w = "shape: [18, 32], fans: in_out, init: ";
  EXPECT_EQ(FanLowered(w + "{variance_scaling: {scale: 18 / 16}}"),
            "truncated_normal(0, 0.2842118085846391, -2, 2)");
  EXPECT_EQ(FanLowered(w + "{variance_scaling: {scale: 2, mode: fan_out, "
                           "distribution: normal}}"),
            "normal(0, 0.25)");
  EXPECT_EQ(FanLowered(w + "{variance_scaling: {scale: 25, mode: fan_avg, "
                           "distribution: untruncated_normal}}"),
            "normal(0, 1)");
  // The geometric mean of 18 and 32 is 24.
  EXPECT_EQ(FanLowered(w + "{variance_scaling: {scale: 2, mode: fan_geo_avg, "
                           "distribution: uniform}}"),
            "uniform(-0.5, 0.5)");
  EXPECT_EQ(FanLowered(w + "{variance_scaling: {scale: 0, distribution: uniform}}"), "constant(0)");
}

TEST(RandomNormalAndUniform, RandomNormalAndUniformEqualKeras) {
  EXPECT_EQ(FanLowered("shape: [2], init: random_normal"), "normal(0, 0.05)");
  EXPECT_EQ(FanLowered("shape: [2], init: {random_normal: {mean: 1, stddev: 2}}"), "normal(1, 2)");
  EXPECT_EQ(FanLowered("shape: [2], init: random_uniform"), "uniform(-0.05, 0.05)");
  EXPECT_EQ(FanLowered("shape: [2], init: {random_uniform: {maxval: 2}}"), "uniform(-0.05, 2)");
}

// The origin of fans.

TEST(Fans, FansFollowTheirOrder) {
  // A Linear layer of torch and a Dense layer of Flax with 256 inputs.
  EXPECT_EQ(Scaled("fan_in", "shape: [16, 256], fans: out_in"), "normal(0, 0.0625)");
  EXPECT_EQ(Scaled("fan_out", "shape: [16, 256], fans: out_in"), "normal(0, 0.25)");
  EXPECT_EQ(Scaled("fan_in", "shape: [256, 16], fans: in_out"), "normal(0, 0.0625)");
  EXPECT_EQ(Scaled("fan_out", "shape: [256, 16], fans: in_out"), "normal(0, 0.25)");
}

TEST(Fans, FansIncludeTheReceptiveField) {
  // Conv2d(64, 16, 4), [out, in, 4, 4] and [4, 4, in, out].
  EXPECT_EQ(Scaled("fan_in", "shape: [16, 64, 4, 4], fans: out_in"), "normal(0, 0.03125)");
  EXPECT_EQ(Scaled("fan_out", "shape: [16, 64, 4, 4], fans: out_in"), "normal(0, 0.0625)");
  EXPECT_EQ(Scaled("fan_in", "shape: [4, 4, 64, 16], fans: in_out"), "normal(0, 0.03125)");
  EXPECT_EQ(Scaled("fan_out", "shape: [4, 4, 64, 16], fans: in_out"), "normal(0, 0.0625)");
}

TEST(Fans, FanOrderIsInherited) {
  const GraphOutcome outcome = BuildRest(
      "fans: in_out\n"
      "init: {i: {variance_scaling: {distribution: normal}}}\n"
      "modules:\n"
      "  a: {shape: [16, 4], init: i}\n"
      "  m:\n"
      "    fans: out_in\n"
      "    b: {shape: [16, 4], init: i}\n"
      "    n:\n"
      "      repeat: {k: 1}\n"
      "      c: {shape: [16, 4], init: i}\n"
      "      d: {shape: [16, 4], init: i, fans: in_out}\n"
      "      o:\n"
      "        fans: in_out\n"
      "        e: {shape: [16, 4], init: i}\n"
      "      f: {shape: [16, 4], init: i}\n"
      "  g: {shape: [16, 4], init: i}\n");
  EXPECT_EQ(outcome.messages + PrintTensors(outcome.graph),
            "a f32 [16, 4] normal(0, 0.25) () ()\n"
            "m.b f32 [16, 4] normal(0, 0.5) () ()\n"
            "m.n.0.c f32 [16, 4] normal(0, 0.5) () ()\n"
            "m.n.0.d f32 [16, 4] normal(0, 0.25) () ()\n"
            "m.n.0.o.e f32 [16, 4] normal(0, 0.25) () ()\n"
            "m.n.0.f f32 [16, 4] normal(0, 0.5) () ()\n"
            "g f32 [16, 4] normal(0, 0.25) () ()\n");
}

TEST(Fans, FanOrderCanBeSet) {
  EXPECT_EQ(Print(BuildRest("modules: {w: {shape: [16, 4], init: "
                            "{variance_scaling: {distribution: normal}}}}\n",
                            {"fans=out_in"})
                      .graph.tensors.at(0)
                      .distribution()),
            "normal(0, 0.5)");
}

// Values do not depend on the sharding of a tensor.
TEST(Fans, FansIgnoreTheSharding) {
  EXPECT_EQ(FanLowered("shape: [64, 16], fans: out_in, init: kaiming_normal, "
                       "shard: [tensor, fsdp]",
                       "mesh: {axes: {fsdp: 8, tensor: 4}}\n"),
            "normal(0, 0.3535533905932738)");  // sqrt(2) / 4
}

TEST(Fans, FansCanBeGivenByAxes) {
  const std::string w = "shape: [5, 16, 64], axes: [k, out, in], ";
  EXPECT_EQ(Scaled("fan_in", w + "in_axis: in, out_axis: out, batch_axis: k"), "normal(0, 0.125)");
  EXPECT_EQ(Scaled("fan_in", w + "in_axis: -1, out_axis: -2, batch_axis: 0"), "normal(0, 0.125)");
  EXPECT_EQ(Scaled("fan_out", w + "in_axis: [in], out_axis: [1], "
                                  "batch_axis: [-3]"),
            "normal(0, 0.25)");
  // An attention output [heads, head_dim, model] has two input dimensions.
  EXPECT_EQ(Scaled("fan_in", "shape: [4, 16, 9], in_axis: [0, 1]"), "normal(0, 0.125)");
  EXPECT_EQ(Scaled("fan_out",
                   "shape: [9, 4, 16], in_axis: 0, "
                   "out_axis: [1, 2]"),
            "normal(0, 0.125)");
  // With two dimensions, only the other one remains.
  EXPECT_EQ(Scaled("fan_in", "shape: [16, 64], in_axis: 0"), "normal(0, 0.25)");
  EXPECT_EQ(Scaled("fan_in", "shape: [16, 64], out_axis: 0"), "normal(0, 0.125)");
  EXPECT_EQ(Scaled("fan_out", "shape: [16, 64], in_axis: [], out_axis: 0"), "normal(0, 0.03125)");
}

TEST(Fans, FansOfOneDimensionNeedAxes) {
  EXPECT_EQ(Scaled("fan_in", "shape: [16], in_axis: 0"), "normal(0, 0.25)");
  EXPECT_EQ(Scaled("fan_out", "shape: [16], in_axis: 0"), "normal(0, 1)");
  EXPECT_EQ(Scaled("fan_in", "shape: [16], out_axis: 0"), "normal(0, 1)");
}

// A stack of layers is [layers, in, out] or [layers, out, in].
TEST(Fans, FanOrderIgnoresBatchDimensions) {
  const std::string w = "shape: [3, 16, 64], batch_axis: 0, fans: ";
  EXPECT_EQ(Scaled("fan_in", w + "in_out"), "normal(0, 0.25)");
  EXPECT_EQ(Scaled("fan_in", w + "out_in"), "normal(0, 0.125)");
  // Without `batch_axis`, JAX also treats the layers as a receptive field.
  EXPECT_EQ(Scaled("fan_in", "shape: [4, 16, 9], fans: in_out"), "normal(0, 0.125)");
}

TEST(Fans, FansNeedNoOrderIfBothAgree) {
  EXPECT_EQ(FanLowered("shape: [32, 32], init: kaiming_normal"), "normal(0, 0.25)");
  EXPECT_EQ(FanLowered("shape: [48, 80], init: xavier_normal"), "normal(0, 0.125)");
  EXPECT_EQ(Scaled("fan_geo_avg", "shape: [2, 8]"), "normal(0, 0.5)");
  EXPECT_EQ(FanLowered("shape: [48, 80], init: {normal: {std: 1}}"), "normal(0, 1)");
  EXPECT_EQ(FanLowered("shape: [], init: {normal: {std: 1}}"), "normal(0, 1)");
}

// Mistakes.

std::string FanMessages(const std::string& tensor, const std::string& top = "") {
  return BuildRest(top + "modules:\n  w: {" + tensor + "}\n").messages;
}

TEST(Fans, AmbiguousFansShowBothOrders) {
  EXPECT_EQ(FanMessages("shape: [256, 512], init: kaiming_uniform"),
            "x.yaml:5:32: error: `kaiming_uniform` needs fan_in, which is 512 "
            "if the shape is [out, in] and 256 if it is [in, out]\n"
            "    w: {shape: [256, 512], init: kaiming_uniform}\n"
            "                                 ^^^^^^^^^^^^^^^\n"
            "  hint: write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, "
            "Keras)\n");
  EXPECT_EQ(FanMessages("shape: [3, 3, 16, 64], init: glorot_normal"),
            "x.yaml:5:36: error: `glorot_normal` needs fan_avg, which is 3072 "
            "if the shape is [out, in, …] and 360 if it is […, in, out]\n"
            "    w: {shape: [3, 3, 16, 64], init: glorot_normal}\n"
            "                                     ^^^^^^^^^^^^^\n"
            "  hint: write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, "
            "Keras), or name the dimensions with `in_axis`, "
            "`out_axis` and `batch_axis`\n");
}

// Each tensor, not the named initializer, has the mistake, with the tensor's own numbers.
TEST(Fans, FanErrorsAreReportedForTheTensor) {
  EXPECT_EQ(BuildRest("init: {base: {kaiming_normal: {mode: fan_out}}}\n"
                      "modules:\n"
                      "  u: {shape: [2, 4], init: base}\n"
                      "  v: {shape: [4, 4], init: base}\n"
                      "  layers:\n"
                      "    repeat: {layer: 9}\n"
                      "    w: {shape: [2, 8], init: base}\n")
                .messages,
            "x.yaml:6:28: error: `kaiming_normal` needs fan_out, which is 2 if "
            "the shape is [out, in] and 4 if it is [in, out]\n"
            "    u: {shape: [2, 4], init: base}\n"
            "                             ^^^^\n"
            "  hint: write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, "
            "Keras)\n"
            "x.yaml:10:30: error: `kaiming_normal` needs fan_out, which is 2 "
            "if the shape is [out, in] and 8 if it is [in, out]\n"
            "      w: {shape: [2, 8], init: base}\n"
            "                               ^^^^\n"
            "  hint: write `fans: out_in` (PyTorch) or `fans: in_out` (JAX, "
            "Keras)\n");
}

TEST(Fans, OneDimensionHasNoFans) {
  EXPECT_EQ(FanMessages("shape: [512], fans: in_out, init: he_normal"),
            "x.yaml:5:41: error: `he_normal` needs fan_in, which one dimension "
            "does not have\n"
            "    w: {shape: [512], fans: in_out, init: he_normal}\n"
            "                                          ^^^^^^^^^\n"
            "  hint: name the dimension, such as `in_axis: 0` or "
            "`out_axis: 0`\n");
  EXPECT_EQ(FanMessages("shape: [], init: xavier_normal"),
            "x.yaml:5:24: error: `xavier_normal` needs fan_avg, which a scalar "
            "does not have\n"
            "    w: {shape: [], init: xavier_normal}\n"
            "                         ^^^^^^^^^^^^^\n"
            "  hint: use an initializer without fans, such as `normal`\n");
}

TEST(FanAxes, FanAxesMustExist) {
  EXPECT_EQ(FanMessages("shape: [2, 4], init: he_normal, in_axis: 2"),
            "x.yaml:5:48: error: `in_axis` is 2, but the tensor has 2 "
            "dimensions\n"
            "    w: {shape: [2, 4], init: he_normal, in_axis: 2}\n"
            "                                                 ^\n"
            "  hint: use -2 to 1\n");
  EXPECT_EQ(FanMessages("shape: [], init: zeros, batch_axis: -1"),
            "x.yaml:5:43: error: `batch_axis` is -1, but the tensor has 0 "
            "dimensions\n"
            "    w: {shape: [], init: zeros, batch_axis: -1}\n"
            "                                            ^^\n");
  EXPECT_EQ(FanMessages("shape: [2, 4], axes: [mlp, embed], init: zeros, in_axis: embd"),
            "x.yaml:5:64: error: the tensor has no axis `embd`\n"
            "    w: {shape: [2, 4], axes: [mlp, embed], init: zeros, in_axis: embd}\n"
            "                                                                 ^^^^\n"
            "  hint: did you mean `embed`?\n");
  EXPECT_EQ(FanMessages("shape: [2, 4], init: zeros, in_axis: embed"),
            "x.yaml:5:44: error: the tensor has no axis `embed`\n"
            "    w: {shape: [2, 4], init: zeros, in_axis: embed}\n"
            "                                             ^^^^^\n"
            "  hint: write a position, such as `-1` for the last dimension\n");
}

TEST(FanAxes, FanAxesMustBeUnambiguous) {
  EXPECT_EQ(FanMessages("shape: [4, 4], axes: [e, e], init: zeros, in_axis: e"),
            "x.yaml:5:58: error: dimensions 0 and 1 both have the name `e`\n"
            "    w: {shape: [4, 4], axes: [e, e], init: zeros, in_axis: e}\n"
            "                                                           ^\n"
            "  hint: write a position, such as `in_axis: 1`\n");
  EXPECT_EQ(FanMessages("shape: [4, 4], init: zeros, in_axis: 0, out_axis: -2"),
            "x.yaml:5:57: error: dimension 0 is in `in_axis` and in "
            "`out_axis`\n"
            "    w: {shape: [4, 4], init: zeros, in_axis: 0, out_axis: -2}\n"
            "                                                          ^^\n");
  EXPECT_EQ(FanMessages("shape: [4, 4], init: zeros, in_axis: [0, -2]"),
            "x.yaml:5:48: error: dimension 0 is twice in `in_axis`\n"
            "    w: {shape: [4, 4], init: zeros, in_axis: [0, -2]}\n"
            "                                                 ^^\n");
  EXPECT_EQ(FanMessages("shape: [3, 4, 5], init: he_normal, in_axis: 1"),
            "x.yaml:5:51: error: `in_axis` leaves dimensions 0, 2, some of which "
            "may be the receptive field\n"
            "    w: {shape: [3, 4, 5], init: he_normal, in_axis: 1}\n"
            "                                                    ^\n"
            "  hint: write `out_axis` too\n");
}

TEST(Words, UnknownWordsAreRejected) {
  const std::string w = "shape: [4, 4], init: ";
  EXPECT_EQ(FanMessages(w + "{kaiming_normal: {mode: fan_inn}}"),
            "x.yaml:5:52: error: unknown mode `fan_inn`\n"
            "    w: {shape: [4, 4], init: {kaiming_normal: {mode: fan_inn}}}\n"
            "                                                     ^^^^^^^\n"
            "  hint: did you mean `fan_in`?\n");
  // Only JAX has this mode; torch lacks it.
  EXPECT_EQ(FanMessages(w + "{kaiming_normal: {mode: fan_geo_avg}}"),
            "x.yaml:5:52: error: unknown mode `fan_geo_avg`\n"
            "    w: {shape: [4, 4], init: {kaiming_normal: {mode: "
            "fan_geo_avg}}}\n"
            "                                                     ^^^^^^^^^^^\n"
            "  hint: one of `fan_in`, `fan_out`\n");
  EXPECT_EQ(FanMessages(w + "{variance_scaling: {distribution: 1 + 2}}"),
            "x.yaml:5:62: error: unknown distribution `1 + 2`\n"
            "    w: {shape: [4, 4], init: {variance_scaling: {distribution: 1 + "
            "2}}}\n"
            "                                                               "
            "^^^^^\n"
            "  hint: one of `truncated_normal`, `untruncated_normal`, "
            "`normal`, `uniform`\n");
  EXPECT_EQ(FanMessages(w + "{xavier_normal: {gain: rellu}}"),
            "x.yaml:5:51: error: `gain` must be a number or a known word, not "
            "`rellu`\n"
            "    w: {shape: [4, 4], init: {xavier_normal: {gain: rellu}}}\n"
            "                                                    ^^^^^\n"
            "  hint: did you mean `relu`?\n");
  EXPECT_EQ(FanMessages(w + "{xavier_normal: {gain: gian}}", "vars: {gain: 1}\n"),
            "x.yaml:6:51: error: `gain` must be a number or a known word, not "
            "`gian`\n"
            "    w: {shape: [4, 4], init: {xavier_normal: {gain: gian}}}\n"
            "                                                    ^^^^\n"
            "  hint: did you mean `gain`?\n");
  EXPECT_EQ(FanMessages(w + "{xavier_normal: {gain: 2 * relu}}"),
            "x.yaml:5:55: error: unknown name `relu`\n"
            "    w: {shape: [4, 4], init: {xavier_normal: {gain: 2 * relu}}}\n"
            "                                                        ^^^^\n");
}

TEST(Words, WordsMustNotBeVariables) {
  EXPECT_EQ(FanMessages("shape: [4, 4], init: {xavier_normal: {gain: relu}}", "vars: {relu: 2}\n"),
            "x.yaml:6:51: error: `relu` is a word that `gain` takes, and a variable "
            "too\n"
            "    w: {shape: [4, 4], init: {xavier_normal: {gain: relu}}}\n"
            "                                                    ^^^^\n"
            "  hint: give the variable another name, or write `1 * relu` for its "
            "value\n");
  // A word is not ambiguous for a parameter that takes no number.
  EXPECT_EQ(FanLowered("shape: [32, 32], init: {kaiming_normal: {mode: fan_out}}",
                       "vars: {fan_out: 2}\n"),
            "normal(0, 0.25)");
  EXPECT_EQ(FanLowered("shape: [48, 80], init: {xavier_normal: {gain: g}}", "vars: {g: 2}\n"),
            "normal(0, 0.25)");
}

TEST(Scales, ScalesAreChecked) {
  const std::string w = "shape: [4, 4], init: ";
  EXPECT_EQ(FanMessages(w + "{xavier_uniform: {gain: -1}}"),
            "x.yaml:5:52: error: `gain` is -1, but must not be negative\n"
            "    w: {shape: [4, 4], init: {xavier_uniform: {gain: -1}}}\n"
            "                                                     ^^\n");
  EXPECT_EQ(FanMessages(w + "{variance_scaling: {scale: -2}}"),
            "x.yaml:5:55: error: `scale` is -2, but must not be negative\n"
            "    w: {shape: [4, 4], init: {variance_scaling: {scale: -2}}}\n"
            "                                                        ^^\n");
  EXPECT_EQ(FanMessages(w + "{kaiming_normal: {a: 1, nonlinearity: relu}}"),
            "x.yaml:5:49: error: `a` is 1, but only `leaky_relu` has a slope, and "
            "the nonlinearity is `relu`\n"
            "    w: {shape: [4, 4], init: {kaiming_normal: {a: 1, nonlinearity: "
            "relu}}}\n"
            "                                                  ^\n");
  EXPECT_EQ(FanMessages(w + "{random_normal: {stddev: -1}}"),
            "x.yaml:5:53: error: `stddev` is -1, but must not be negative\n"
            "    w: {shape: [4, 4], init: {random_normal: {stddev: -1}}}\n"
            "                                                      ^^\n");
  EXPECT_EQ(FanMessages(w + "{random_uniform: {minval: 1}}"),
            "x.yaml:5:29: error: `maxval` is 0.05, but must be above `minval`, which "
            "is 1\n"
            "    w: {shape: [4, 4], init: {random_uniform: {minval: 1}}}\n"
            "                              ^^^^^^^^^^^^^^\n"
            "  hint: for equal values use `{constant: {value: …}}`\n");
  // The gain is a valid scale, but the resulting bound is out of range.
  EXPECT_EQ(FanMessages(w + "{xavier_uniform: {gain: 1.2676506e30}}"),
            "x.yaml:5:52: error: `2 * bound` is 2.1956352454451718e+30, but its "
            "magnitude must be 0 or from 2^-80 (8.3e-25) to 2^100 (1.3e30)\n"
            "    w: {shape: [4, 4], init: {xavier_uniform: {gain: 1.2676506e30}}}\n"
            "                                                     ^^^^^^^^^^^^\n"
            "  hint: outside that range f32 arithmetic would not be exact on every "
            "machine\n");
}

}  // namespace
}  // namespace shardinit
