// Tests each sharding language: its partitions and its mistakes.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <random>
#include <span>

#include "graph/languages/python_text.h"
#include "graph/languages/tensor_patterns.h"
#include "support/graph_text.h"

namespace shardinit {
namespace {

constexpr std::string_view kMesh = "mesh: {axes: {fsdp: 2, tensor: 4}}\n";
constexpr std::string_view kLlama =
    "modules:\n"
    "  embed.weight: {shape: [32, 16], axes: [vocab, embed], init: zeros}\n"
    "  layers:\n"
    "    repeat: {layer: 2}\n"
    "    q.weight: {shape: [16, 16], axes: [heads, embed], init: zeros}\n"
    "    up.weight: {shape: [64, 16], axes: [mlp, embed], init: zeros}\n"
    "    up.bias: {shape: [64], axes: [mlp], init: zeros}\n"
    "    down.weight: {shape: [16, 64], axes: [embed, mlp], init: zeros}\n"
    "    down.bias: {shape: [16], axes: [embed], init: zeros}\n"
    "  norm.weight: {shape: [16], axes: [embed], init: ones}\n";

// Returns `path (axes) (axes)` of each tensor, or the messages.
std::string Cuts(const std::string& sharding, std::string_view mesh = kMesh,
                 std::string_view modules = kLlama) {
  const GraphOutcome outcome =
      BuildRest(std::string(mesh) + "sharding:" + sharding + "\n" + std::string(modules));
  std::string out = outcome.messages;
  for (const Tensor& tensor : outcome.graph.tensors) {
    InitGraph one;
    one.mesh = outcome.graph.mesh;
    one.tensors = {tensor};
    const std::string line = PrintTensors(one);
    // Omits the element type, the shape and the values.
    out += tensor.path();
    const size_t values = line.find("constant(");
    out += line.substr(line.find(')', values) + 1);
  }
  return out;
}

std::string One(const std::string& sharding, const std::string& shape,
                std::string_view mesh = kMesh) {
  return Cuts(sharding, mesh, "modules: {w: {shape: " + shape + ", init: zeros}}\n");
}

// Maps from patterns.

TEST(MapLanguage, AcceptsTorchprimeLists) {
  EXPECT_EQ(Cuts("\n"
                 "  # Weights\n"
                 "  embed.weight: [fsdp, tensor]\n"
                 "  layers.*.q.weight: [tensor, fsdp]\n"
                 "  layers.*.up.weight: ['tensor', null]\n"
                 "  layers.*.up.bias: tensor\n"
                 "  layers.*.down.weight: [null, [tensor, fsdp]]\n"
                 "  norm.weight: null\n"
                 "  # Activations\n"
                 "  layers.*.q: [[data, fsdp], context, tensor]\n"
                 "  layers.*: [[data, fsdp], null, tensor]\n"
                 "  layers.*[0]: [[data, fsdp], null, null]\n"),
            "embed.weight (fsdp) (tensor)\n"
            "layers.0.q.weight (tensor) (fsdp)\n"
            "layers.0.up.weight (tensor) ()\n"
            "layers.0.up.bias (tensor)\n"
            "layers.0.down.weight () (tensor, fsdp)\n"
            "layers.0.down.bias ()\n"
            "layers.1.q.weight (tensor) (fsdp)\n"
            "layers.1.up.weight (tensor) ()\n"
            "layers.1.up.bias (tensor)\n"
            "layers.1.down.weight () (tensor, fsdp)\n"
            "layers.1.down.bias ()\n"
            "norm.weight ()\n");
}

TEST(MapLanguage, AcceptsJaxPartitionSpecs) {
  EXPECT_EQ(One(" {w: \"P('fsdp', None, ('tensor',))\"}", "[8, 8, 8]"), "w (fsdp) () (tensor)\n");
  EXPECT_EQ(One("\n  w: P('fsdp')", "[8, 8]"), "w (fsdp) ()\n");
  EXPECT_EQ(One("\n  w: jax.sharding.PartitionSpec(None, ('tensor', 'fsdp'))", "[8, 8]"),
            "w () (tensor, fsdp)\n");
  EXPECT_EQ(One("\n  w: (('tensor', 'fsdp'), None)", "[8, 8]"), "w (tensor, fsdp) ()\n");
  EXPECT_EQ(One("\n  w: P()", "[8, 8]"), "w () ()\n");
}

// Field guide: fully_shard after parallelize_module shards 8 rows as 0-1, 4-5, 2-3, 6-7.
TEST(MapLanguage, AcceptsDTensorPlacements) {
  const std::string_view mesh = "mesh: {axes: {dp: 2, tp: 2}}\n";
  EXPECT_EQ(One(" {w: {dp: Shard(0), tp: Shard(0)}}", "[8]", mesh), "w (dp, tp)\n");
  EXPECT_EQ(One(" {w: {dp: _StridedShard(0, split_factor=2), tp: Shard(0)}}", "[8]", mesh),
            "w (tp, dp)\n");
  EXPECT_EQ(
      One("\n  w: [_StridedShard(dim=0, sf=mesh_tp), Shard(dim=0)]", "[8]", mesh).substr(0, 5),
      "x.yam");  // YAML truncates it.
  EXPECT_EQ(One("\n  w: (_StridedShard(dim=0, sf=mesh_tp), Shard(dim=0))", "[8]", mesh),
            "w (tp, dp)\n");
  EXPECT_EQ(One(" {w: {tp: Shard(-1), dp: Replicate()}}", "[8, 8]", mesh), "w () (tp)\n");
  EXPECT_EQ(One(" {w: {tp: Shard(mesh_dp > 1)}}", "[8, 8]", mesh), "w () (tp)\n");
  EXPECT_EQ(One(" {w: [Shard(1), Shard(0)]}", "[8, 8]", mesh), "w (tp) (dp)\n");
  EXPECT_EQ(One(" {w: {tp: _StridedShard(0, split_factor=3)}}", "[12]", mesh), "w (tp / 3)\n");
  EXPECT_EQ(One(" {w: {a: _StridedShard(0, split_factor=4), b: Shard(0), c: Shard(0)}}", "[16]",
                "mesh: {axes: {a: 2, b: 2, c: 2}}\n"),
            "w (b, c, a)\n");
}

TEST(MapLanguage, RejectsInvalidPlacements) {
  const std::string_view mesh = "mesh: {axes: {dp: 2, tp: 2}}\n";
  const auto message = [&](const std::string& placement) {
    const std::string all = One(" {w: {dp: " + placement + "}}", "[8]", mesh);
    return all.substr(0, all.find('\n'));
  };
  EXPECT_EQ(message("Partial()"),
            "x.yaml:5:20: error: a weight cannot be `Partial`, because its parts would have to be "
            "added up");
  EXPECT_EQ(message("Shard(1)"),
            "x.yaml:5:20: error: `w` has 1 dimension, so there is no dimension 1");
  EXPECT_EQ(message("Shard()"), "x.yaml:5:20: error: `Shard` takes 1 argument, not these");
  EXPECT_EQ(message("Sharded(0)"), "x.yaml:5:20: error: `Sharded(0)` is not a placement");
  EXPECT_EQ(message("fsdp"), "x.yaml:5:20: error: `fsdp` is not a placement");
  EXPECT_EQ(message("Shard(0"), "x.yaml:5:20: error: `Shard(0` is not well formed");
  EXPECT_EQ(One(" {w: {dp: '_StridedShard(0, split_factor=999)', tp: '_StridedShard(0, "
                "split_factor=99)'}}",
                "[8]", mesh),
            "x.yaml:5:21: error: the split_factors of `w` make more than 65536 segments on a rank\n"
            "  sharding: {w: {dp: '_StridedShard(0, split_factor=999)', tp: '_StridedShard(0, "
            "split_factor=99)'}}\n"
            "                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n");
}

// Axes remain separate if sharding one after the other differs from sharding by both at once.
TEST(MapLanguage, KeepsNestedAxesSeparate) {
  const std::string_view mesh = "mesh: {axes: {dp: 2, tp: 2}}\n";
  const std::string both = "dp: Shard(0), tp: Shard(0)}";
  EXPECT_EQ(One(" {w: {" + both + "}", "[10]", mesh),
            "x.yaml:6:23: error: mesh axes `dp` × `tp` (4) do not divide dimension 0 of `w` (10)\n"
            "  modules: {w: {shape: [10], init: zeros}}\n"
            "                        ^^\n"
            "  hint: use a multiple of 4, leave the dimension whole, or allow shorter last shards "
            "with `uneven: chunk`\n");
  EXPECT_EQ(One(" {uneven: chunk, w: {" + both + "}", "[10]", mesh), "w (dp, tp) nested 1, 1\n");
  EXPECT_EQ(One(" {uneven: chunk, w: {" + both + "}", "[7]", mesh), "w (dp, tp)\n");
  const std::string strided = " {uneven: chunk, w: {dp: _StridedShard(0, split_factor=2), ";
  EXPECT_EQ(One(strided + "tp: Shard(0)}}", "[10]", mesh), "w (tp, dp) nested 1, 1\n");
  EXPECT_EQ(One(" {w: {dp: Shard(0), tp: _StridedShard(0, split_factor=2)}}", "[8]", mesh),
            "w (dp, tp) nested 1, 2\n");
  EXPECT_EQ(One(strided + "tp: '_StridedShard(0, split_factor=2)'}}", "[8]", mesh),
            "w (dp, tp / 2)\n");
  // Two entries may agree for some shapes and differ for others.
  EXPECT_EQ(One(" {'w': {" + both + ", '?': [[dp, tp]]}", "[8]", mesh), "w (dp, tp)\n");
  const std::string two =
      One(" {uneven: chunk, 'w': {" + both + ", '?': [[dp, tp]]}", "[10]", mesh);
  EXPECT_NE(two.find("in two ways, {dp: Shard(0), tp: Shard(0)} and [[dp, tp]]"), two.npos) << two;
}

TEST(MapLanguage, MapsRejectUnusedPatternsAndWrongAxes) {
  EXPECT_EQ(Cuts("\n"
                 "  layers.*.qq.weight: [tensor]\n"
                 "  norm: [fsdp]\n"
                 "  embed.weight: [fsdp, fsdp]\n"
                 "  layers.*.up.bias: [tensor, null]\n"
                 "  layers.*.down.*: [fsdp]\n"
                 "  layers.0.down.weight: [fsdp]\n"
                 "  layers.1.down.weight: [tensor]\n"),
            "x.yaml:6:3: error: no tensor matches `layers.*.qq.weight`\n"
            "    layers.*.qq.weight: [tensor]\n"
            "    ^^^^^^^^^^^^^^^^^^\n"
            "  hint: did you mean `layers.*.q.weight`?\n"
            "x.yaml:7:3: error: `norm` matches a module, but no tensor\n"
            "    norm: [fsdp]\n"
            "    ^^^^\n"
            "  hint: did you mean `norm.weight`?\n"
            "x.yaml:8:24: error: mesh axis `fsdp` would shard a tensor twice\n"
            "    embed.weight: [fsdp, fsdp]\n"
            "                         ^^^^\n"
            "  hint: each mesh axis may shard one dimension of a tensor, once\n"
            "x.yaml:9:21: error: [tensor, null] has 2 entries, but `layers.0.up.bias` has 1 "
            "dimension\n"
            "    layers.*.up.bias: [tensor, null]\n"
            "                      ^^^^^^^^^^^^^^\n"
            "  hint: give at most one entry for each dimension\n"
            "x.yaml:12:3: error: `layers.1.down.weight` matches two patterns that shard it in two "
            "ways, [fsdp] and [tensor]\n"
            "    layers.1.down.weight: [tensor]\n"
            "    ^^^^^^^^^^^^^^^^^^^^\n"
            "  hint: make one of them narrower, or the two equal\n"
            "x.yaml:10:3: note: the other pattern\n"
            "    layers.*.down.*: [fsdp]\n"
            "    ^^^^^^^^^^^^^^^\n");
}

TEST(MapLanguage, ShardOfATensorOverridesTheMap) {
  EXPECT_EQ(Cuts(" {w: [fsdp]}", kMesh,
                 "modules: {w: {shape: [8, 8], shard: [null, tensor], init: zeros}}\n"),
            "w () (tensor)\n");
}

TEST(MapLanguage, MapsMayAllowUnevenShards) {
  const std::string even = One(" {w: [tensor]}", "[10]");
  EXPECT_EQ(even.substr(0, even.find('\n')),
            "x.yaml:6:23: error: mesh axis `tensor` (4) does not divide dimension 0 of `w` (10)");
  EXPECT_EQ(One(" {uneven: chunk, w: [tensor]}", "[10]"), "w (tensor)\n");
  EXPECT_EQ(One(" {uneven: chunk, map: {w: [tensor]}}", "[10]"), "w (tensor)\n");
  const std::string own = Cuts(" {uneven: chunk, w: [tensor]}", kMesh,
                               "modules: {w: {shape: [10], uneven: error, init: zeros}}\n");
  EXPECT_NE(own.find("does not divide"), own.npos);
}

TEST(PathMatches, StarsMatchWithinPathParts) {
  EXPECT_TRUE(PathMatches("a.*.w", "a.0.w"));
  EXPECT_TRUE(PathMatches("a.l*r.w", "a.layer.w"));
  EXPECT_FALSE(PathMatches("a.*.w", "a.0.1.w"));
  EXPECT_FALSE(PathMatches("a.*", "a"));
  EXPECT_FALSE(PathMatches("a", "a.w"));
  EXPECT_TRUE(PathMatches("**.w", "w"));
  EXPECT_TRUE(PathMatches("**.w", "a.0.1.w"));
  EXPECT_TRUE(PathMatches("a.**.w", "a.w"));
  EXPECT_TRUE(PathMatches("a.**", "a.b.c"));
  EXPECT_FALSE(PathMatches("a.**.w", "a.0.v"));
  EXPECT_FALSE(PathMatches("a.**", "a"));
  EXPECT_TRUE(PathMatches("**.b.**.w", "a.b.c.b.w"));
  EXPECT_FALSE(PathMatches("**.b.**.b.w", "a.b.w"));
}

// The matcher chooses for one star after the other, so time is not exponential.
TEST(PathMatches, ManyStarsAreNotExponential) {
  std::string pattern, path = "a";
  for (int i = 0; i < 200; ++i) {
    pattern += "**.";
    path += ".a";
  }
  EXPECT_FALSE(PathMatches(pattern + "b", path));
  EXPECT_TRUE(PathMatches(pattern + "a", path));
}

// A set of globs finds the same patterns as matching each alone.
TEST(Globs, GlobSetsMatchLikeEachPattern) {
  std::mt19937 random(1);
  const auto join = [&](std::span<const std::string_view> words, size_t most) {
    std::string joined(words[random() % words.size()]);
    for (size_t more = random() % most; more > 0; --more) {
      joined += fmt::format(".{}", words[random() % words.size()]);
    }
    return joined;
  };
  constexpr std::string_view kParts[] = {"a", "b", "ab", "*", "**", "**", "?", "a*", "[!a]", "*b"};
  constexpr std::string_view kWords[] = {"a", "b", "ab", "bb", "aab"};
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> patterns;
    for (int i = 0; i < 20; ++i) patterns.push_back(join(kParts, 6));
    Globs globs(patterns, Stars::kParts);
    for (int i = 0; i < 20; ++i) {
      const std::string path = join(kWords, 6);
      std::vector<size_t> expected;
      for (size_t p = 0; p < patterns.size(); ++p) {
        if (PathMatches(patterns[p], path)) expected.push_back(p);
      }
      EXPECT_EQ(globs.Match(path), expected)
          << path << ": " << fmt::format("{}", fmt::join(patterns, " "));
      found += static_cast<int>(expected.size());
    }
  }
  EXPECT_GT(found, 10'000);
}

TEST(TensorPatterns, MatchesWholePathsAndWildcardsInOrder) {
  TensorPatterns patterns({{"a.*.w", {}}, {"a.1.w", {}}, {"**", {}}, {"a.1.w", {}}, {"a.2.w", {}}});
  EXPECT_EQ(patterns.Match("a.1.w"), (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_EQ(patterns.Match("a.3.w"), (std::vector<size_t>{0, 2}));
  EXPECT_FALSE(patterns.AllUsed());
  EXPECT_EQ(patterns.Match("a.2.w"), (std::vector<size_t>{0, 2, 4}));
  EXPECT_TRUE(patterns.AllUsed());
}

// An empty entry does not mean "whole".
TEST(Languages, LanguagesRejectEmptyValues) {
  EXPECT_NE(Cuts(" {fsdp: null}").find("`fsdp` takes a mapping, not nothing"), std::string::npos);
  EXPECT_NE(Cuts(" {rules: null}").find("`rules` takes a list, not nothing"), std::string::npos);
  EXPECT_NE(Cuts(" []").find("no sharding of tensors is given"), std::string::npos);
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

TEST(Languages, ShardingMustNotBeEmpty) {
  EXPECT_EQ(FirstLine(Cuts(" {uneven: chunk}")),
            "x.yaml:5:11: error: no sharding of tensors is given");
  EXPECT_EQ(FirstLine(Cuts(" {haliax: {}}")), "x.yaml:5:20: error: `haliax` names no axis");
  EXPECT_EQ(FirstLine(Cuts(" {rules: []}")), "x.yaml:5:19: error: `rules` is empty");
  EXPECT_EQ(FirstLine(Cuts(" {megatron: {axis: tensor}}")),
            "x.yaml:5:12: error: `megatron` gives no tensor a role");
  EXPECT_EQ(FirstLine(Cuts(" {'**': [Shard(0)]}")),
            "x.yaml:5:18: error: 1 placement, but the mesh has 2 axes");
}

TEST(Languages, MissingAxisIsReportedOnce) {
  EXPECT_EQ(Cuts(" first_divisible", "mesh: {axes: {a: 2}}\n",
                 "modules: {w: {shape: [], init: zeros}}\n"),
            "x.yaml:5:11: error: unknown mesh axis `fsdp`\n"
            "  sharding: first_divisible\n"
            "            ^^^^^^^^^^^^^^^\n"
            "  hint: the only one is `a`\n");
}

TEST(TensorPatterns, SuggestsPatternsInTheUsersForm) {
  const auto hint = [](std::string_view pattern) {
    const std::string text = Cuts(fmt::format(" {{megatron: {{column: '{}'}}}}", pattern));
    return text.substr(std::min(text.size(), text.find("hint: ")));
  };
  EXPECT_EQ(hint("**.q"), "hint: did you mean `**.q.weight`?\n");
  EXPECT_EQ(hint("layers.*.up"), "hint: did you mean `layers.*.up.weight`?\n");
  EXPECT_EQ(hint("**.dwn.weight"), "hint: did you mean `**.down.weight`?\n");
  EXPECT_EQ(hint("layers.1.qq.weight"), "hint: did you mean `layers.*.q.weight`?\n");
}

// Languages of axes.

TEST(HaliaxLanguage, HaliaxAxesHaveNoOrder) {
  const std::string_view modules =
      "modules:\n"
      "  a: {shape: [16, 8], axes: [mlp, embed], init: zeros}\n"
      "  b: {shape: [8, 8], axes: [embed, embed], init: zeros}\n"
      "  c: {shape: [8, 3], axes: [embed, null], init: zeros}\n";
  EXPECT_EQ(Cuts(" {haliax: {embed: fsdp, mlp: tensor, embed#2: tensor}}", kMesh, modules),
            "a (tensor) (fsdp)\nb (fsdp) (tensor)\nc (fsdp) ()\n");
  EXPECT_EQ(Cuts(" {haliax: {embed: [fsdp, tensor], embed#2: null}}", kMesh, modules),
            "a () (fsdp, tensor)\nb (fsdp, tensor) ()\nc (fsdp, tensor) ()\n");
  EXPECT_EQ(Cuts(" {haliax: {embed: fsdp, mlp: tensor}}", kMesh, modules),
            "x.yaml:5:21: error: mesh axis `fsdp` would shard `b` twice: its dimensions 0 and 1, "
            "`embed` and `embed`\n"
            "  sharding: {haliax: {embed: fsdp, mlp: tensor}}\n"
            "                      ^^^^^\n"
            "  hint: `embed#2: null` keeps the second one whole\n");
  EXPECT_EQ(Cuts(" {haliax: {embd: fsdp, embed#3: tensor}}", kMesh, modules),
            "x.yaml:5:21: error: no tensor has the logical axis `embd`\n"
            "  sharding: {haliax: {embd: fsdp, embed#3: tensor}}\n"
            "                      ^^^^\n"
            "  hint: did you mean `embed`?\n"
            "x.yaml:5:33: error: no tensor has as many axes `embed` as `embed#3` needs\n"
            "  sharding: {haliax: {embd: fsdp, embed#3: tensor}}\n"
            "                                  ^^^^^^^\n"
            "  hint: remove it\n");
}

// The example of flax.linen.spmd's documentation, in both forms of a rule.
TEST(RuleLanguage, RulesMayBeInsideSharding) {
  const std::string_view mesh = "mesh: {axes: {X: 2, Y: 2, Z: 2}}\n";
  const std::string_view modules =
      "modules: {w: {shape: [8, 8, 8, 8], axes: [batch, length, heads, features], init: zeros}}\n";
  EXPECT_EQ(
      Cuts(" {rules: [[batch, X], [features, X], ['heads', ['Y']], [batch, Z], [length, null], "
           "[features, null]]}",
           mesh, modules),
      "w (X) () (Y) ()\n");
  EXPECT_EQ(
      Cuts(" {rules: [{batch: X}, {features: X}, {heads: Y}, {length: null}]}", mesh, modules),
      "w (X) () (Y) ()\n");
}

// Languages of shapes.

TEST(AutomaticLanguages, FsdpShardsTheLargestDimension) {
  EXPECT_EQ(One(" fsdp", "[4, 8, 8]"), "w () (fsdp) ()\n");
  EXPECT_EQ(One(" fsdp", "[]"), "w\n");
  EXPECT_EQ(One(" fsdp", "[3]"), "w (fsdp)\n");  // It is uneven.
  EXPECT_EQ(One(" {fsdp: {axis: [fsdp, tensor]}}", "[3, 9]"), "w () (fsdp, tensor)\n");
  EXPECT_EQ(Cuts(" [{map: {layers.*.q.weight: [tensor]}}, fsdp]").substr(0, 60),
            "embed.weight (fsdp) ()\nlayers.0.q.weight (tensor) ()\nlayers.");
}

TEST(AutomaticLanguages, FirstDivisibleShardsTheFirstDivisibleDimension) {
  EXPECT_EQ(One(" first_divisible", "[3, 4, 8]"), "w () (fsdp) ()\n");
  EXPECT_EQ(One(" {first_divisible: {axis: tensor}}", "[2, 3, 8]"), "w () () (tensor)\n");
  EXPECT_EQ(One(" {first_divisible: {replicate_unshardable: true}}", "[3, 5]"), "w () ()\n");
  EXPECT_EQ(
      One(" first_divisible", "[3, 5]"),
      "x.yaml:5:11: error: `fsdp` (2) divides no dimension of `w` [3, 5]\n"
      "  sharding: first_divisible\n"
      "            ^^^^^^^^^^^^^^^\n"
      "  hint: `{first_divisible: {replicate_unshardable: true}}` keeps such tensors whole\n");
}

TEST(AutomaticLanguages, FullyShardShardsTheFirstDimension) {
  EXPECT_EQ(Cuts(" {map: {layers.*.*.weight: [tensor]}, fully_shard: {}}").substr(0, 59),
            "embed.weight (fsdp) ()\nlayers.0.q.weight (tensor, fsdp) ()\n");
  // Experts use their own axes, or their second dimension if there are many axes.
  const std::string_view mesh = "mesh: {axes: {fsdp: 8, expert: 2}}\n";
  const std::string_view modules =
      "modules:\n"
      "  experts.w: {shape: [4, 16, 3], axes: [experts, mlp, null], init: zeros}\n"
      "  dense.w: {shape: [16, 3], axes: [mlp, null], init: zeros}\n";
  EXPECT_EQ(Cuts(" [{haliax: {experts: expert}}, {fully_shard: {axes: [fsdp, expert], "
                 "dimensions: {experts.*: mesh_fsdp * mesh_expert > 4}}}]",
                 mesh, modules),
            "experts.w (expert) (fsdp) ()\ndense.w (fsdp, expert) ()\n");
}

// Parts of parts have other borders than parts. All axes of one language shard as one.
TEST(AutomaticLanguages, FullyShardDividesPartsOfOtherAxes) {
  EXPECT_EQ(One(" {map: {w: [tensor]}, fully_shard: {}}", "[12]"),
            "w (tensor, fsdp) nested 1, 1\n");
  EXPECT_EQ(One(" fully_shard", "[11]"), "w (fsdp)\n");
  const std::string_view mesh = "mesh: {axes: {fsdp: 2, context: 3, tensor: 2}}\n";
  EXPECT_EQ(One(" {map: {w: [tensor]}, fully_shard: {axes: [fsdp, context]}}", "[48]", mesh),
            "w (tensor, fsdp, context)\n");
  EXPECT_EQ(One(" {map: {w: [tensor]}, fully_shard: {axes: [fsdp, context]}}", "[14]", mesh),
            "w (tensor, fsdp, context) nested 1, 1, 0\n");
  // fully_shard divides the parts of a _StridedShard, concatenated.
  EXPECT_EQ(One(" {map: {w: {tensor: _StridedShard(0, split_factor=2)}}, fully_shard: {}}", "[8]",
                "mesh: {axes: {fsdp: 2, tensor: 2}}\n"),
            "w (tensor, fsdp) nested 2, 1\n");
}

TEST(AutomaticLanguages, FullyShardDividesOtherDimensionsEvenly) {
  const std::string_view mesh = "mesh: {axes: {fsdp: 3, tensor: 2}}\n";
  const std::string with = " {map: {w: [null, tensor]}, fully_shard: {dimensions: {w: 1}}}";
  EXPECT_EQ(One(with, "[4, 18]", mesh), "w () (tensor, fsdp)\n");
  EXPECT_EQ(
      One(with, "[4, 10]", mesh),
      "x.yaml:5:38: error: `fsdp` (3) does not divide the 5 that rank 0 has of dimension 1 of "
      "`w`, and fully_shard of PyTorch refuses that for all but the first dimension\n"
      "  sharding: {map: {w: [null, tensor]}, fully_shard: {dimensions: {w: 1}}}\n"
      "                                       ^^^^^^^^^^^\n"
      "  hint: use a multiple, or choose another dimension under `dimensions`\n");
}

TEST(MegatronLanguage, MegatronShardsByRole) {
  EXPECT_EQ(Cuts(" {megatron: {column: [layers.*.q.*, layers.*.up.*], row: layers.*.down.*, "
                 "vocab: [embed.weight]}}")
                .substr(0, 190),
            "embed.weight (tensor) ()\n"
            "layers.0.q.weight (tensor) ()\n"
            "layers.0.up.weight (tensor) ()\n"
            "layers.0.up.bias (tensor)\n"
            "layers.0.down.weight () (tensor)\n"
            "layers.0.down.bias ()\n"
            "layers.1.q.weight (tens");
  const std::string_view mesh = "mesh: {axes: {expert: 2, tensor: 2}}\n";
  EXPECT_EQ(Cuts(" {megatron: {expert: 'e.*', column: e.up, row: e.down}}", mesh,
                 "modules:\n"
                 "  e.up: {shape: [4, 8, 2], init: zeros}\n"
                 "  e.down: {shape: [4, 2, 8], init: zeros}\n"),
            "e.up (expert) (tensor) ()\ne.down (expert) () (tensor)\n");
  EXPECT_EQ(Cuts(" {megatron: {expert: 'e.*'}}", "mesh: {axes: {expert: 2}}\n",
                 "modules: {e.up: {shape: [4, 8, 2], init: zeros}}\n"),
            "e.up (expert) () ()\n");
  EXPECT_EQ(Cuts(" {megatron: {column: 'w', row: 'w'}}", kMesh,
                 "modules: {w: {shape: [8, 8], init: zeros}}\n"),
            "x.yaml:5:41: error: `w` has two roles, `column` and `row`\n"
            "  sharding: {megatron: {column: 'w', row: 'w'}}\n"
            "                                          ^^^\n"
            "  hint: make one of the patterns narrower\n"
            "x.yaml:5:31: note: the other pattern\n"
            "  sharding: {megatron: {column: 'w', row: 'w'}}\n"
            "                                ^^^\n");
}

// Pipelines.

std::string Pipeline(const std::string& keys, int ranks, int layers) {
  return Cuts(" {pipeline: {layers: 'layers.*', count: " + std::to_string(layers) +
                  ", first: [embed], last: [norm, embed]" + keys + "}}",
              "mesh: {axes: {pipe: " + std::to_string(ranks) + "}}\n",
              "modules:\n"
              "  embed: {shape: [], init: zeros}\n"
              "  layers: {repeat: {i: " +
                  std::to_string(layers) +
                  "}, w: {shape: [], init: zeros}}\n"
                  "  norm: {shape: [], init: zeros}\n");
}

// Returns the rank of each layer.
std::string Ranks(const std::string& keys, int ranks, int layers) {
  const std::string all = Pipeline(keys, ranks, layers);
  if (all.find("error") != all.npos) return all.substr(0, all.find('\n'));
  std::string out;
  for (int i = 0; i < layers; ++i) {
    const size_t at = all.find(" on pipe ", all.find("layers." + std::to_string(i) + "."));
    out += all.substr(at + 9, all.find('\n', at) - at - 9);
  }
  return out;
}

constexpr std::string_view kExperts =
    "modules:\n"
    "  layers:\n"
    "    repeat: {i: 2}\n"
    "    router: {shape: [6, 2], init: zeros}\n"
    "    experts: {repeat: {j: 6}, up: {shape: [8, 2], init: zeros}}\n";

TEST(MegatronLanguage, MegatronPlacesExperts) {
  const std::string_view mesh = "mesh: {axes: {pipe: 2, e: 3, tensor: 2}}\n";
  const std::string experts =
      "megatron: {expert: '**.experts.**', expert_axis: e, num_experts: 6, column: '**.up'}";
  const std::string pipeline = "pipeline: {layers: 'layers.*', count: 2}";
  std::string expected;
  for (int i = 0; i < 2; ++i) {
    expected += fmt::format("layers.{}.router () () on pipe {}\n", i, i);
    for (int j = 0; j < 6; ++j) {
      expected +=
          fmt::format("layers.{}.experts.{}.up (tensor) () on pipe {} on e {}\n", i, j, i, j / 2);
    }
  }
  EXPECT_EQ(Cuts(" {" + experts + ", " + pipeline + "}", mesh, kExperts), expected);
  EXPECT_EQ(Cuts(" {" + pipeline + ", " + experts + "}", mesh, kExperts), expected);
  // The first of several axes is major; an axis of one rank need not be named.
  const std::string several =
      Cuts(" {megatron: {expert: '**.experts.**', expert_axis: [a, one, b], num_experts: 6}}",
           "mesh: {axes: {b: 3, one: 1, a: 2}}\n", kExperts);
  for (int j = 0; j < 6; ++j) {
    const auto line =
        fmt::format("layers.1.experts.{}.up () () on b {} on a {}\n", j, j % 3, j / 3);
    EXPECT_NE(several.find(line), several.npos) << line << several;
  }
  // A tensor's own stage takes precedence.
  EXPECT_EQ(Cuts(" {megatron: {expert: 'experts.**', expert_axis: e, num_experts: 2}}",
                 "mesh: {axes: {e: 2}}\n",
                 "modules:\n"
                 "  experts.0: {shape: [2], init: zeros, stage: {e: 1}}\n"
                 "  experts.1: {shape: [2], init: zeros, stage: null}\n"),
            "experts.0 () on e 1\nexperts.1 ()\n");
}

TEST(MegatronLanguage, MegatronRejectsExpertsWithoutAPlace) {
  const auto said = [](std::string_view more) {
    return Cuts(fmt::format(" {{megatron: {{expert: '**.experts.**', {}}}}}", more),
                "mesh: {axes: {expert: 4}}\n", kExperts);
  };
  const auto first = [&](std::string_view more) {
    const std::string text = said(more);
    const size_t error = text.find("error");
    return text.substr(error, text.find('\n') - error);
  };
  EXPECT_EQ(first("expert_axis: expert"),
            "error: `layers.0.experts.0.up` is of expert 0, but the number of experts is unknown");
  EXPECT_EQ(first("num_experts: 4"),
            "error: `layers.0.experts.4.up` is of expert 4, but `num_experts` is 4");
  EXPECT_EQ(first("num_experts: 12"), "error: `num_experts` is 12, but the last expert here is 5");
  const std::string uneven = said("num_experts: 6");
  EXPECT_EQ(uneven.substr(0, uneven.find('\n')),
            "x.yaml:5:61: error: mesh axis `expert` (4) does not divide 6 experts");
  EXPECT_EQ(uneven.find("error", uneven.find("error") + 1), uneven.npos) << uneven;
}

TEST(PipelineLanguage, PipelineAssignsLayersToStages) {
  EXPECT_EQ(Pipeline("", 3, 3),
            "embed on pipe 0, 2\n"  // It is tied, so the last stage has a copy.
            "layers.0.w on pipe 0\n"
            "layers.1.w on pipe 1\n"
            "layers.2.w on pipe 2\n"
            "norm on pipe 2\n");
  // Tensors before the layers are on the first stage, tensors after them on the last.
  EXPECT_EQ(
      Cuts(" {pipeline: {layers: '**.layers.*', count: 2}}", "mesh: {axes: {pipe: 2}}\n",
           "modules:\n"
           "  m.embed: {shape: [], init: zeros}\n"
           "  m.layers: {repeat: {i: 2}, w: {shape: [], init: zeros}}\n"
           "  m.norm: {shape: [], init: zeros}\n"),
      "m.embed on pipe 0\nm.layers.0.w on pipe 0\nm.layers.1.w on pipe 1\nm.norm on pipe 1\n");
  EXPECT_EQ(Pipeline("", 1, 1), "embed\nlayers.0.w\nnorm\n");
  // Megatron's 8 layers on 2 ranks with 2 virtual stages.
  EXPECT_EQ(Ranks(", virtual: 2", 2, 8), "00110011");
  EXPECT_EQ(Ranks(", virtual: 2, style: v", 2, 8), "00111100");
  EXPECT_EQ(Ranks(", stages: [1, 3]", 2, 4), "0111");
  EXPECT_EQ(Ranks(", virtual: 2, stages: [1, 0, 3, 0]", 2, 4), "0000");
  EXPECT_EQ(Ranks(", stages: [[0, 3], [1, 2]]", 2, 4), "0110");
  EXPECT_EQ(Ranks(", remainder: first", 3, 8), "00011122");
  // account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split.
  EXPECT_EQ(Ranks(", first_counts_as: 1, last_counts_as: 1", 4, 10), "0011122233");
  // num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage.
  EXPECT_EQ(Ranks(", layers_in_first: 1, layers_in_last: 3", 4, 8), "01122333");
  // These count a rank's layers in all rounds.
  EXPECT_EQ(Ranks(", virtual: 2, layers_in_last: 6", 2, 18), "000000111000000111");
  EXPECT_EQ(Ranks(", virtual: 2, layers_in_first: 2, layers_in_last: 4", 3, 10), "0112201122");
  // A V goes back and forth any number of times: generate_stage_to_rank_mapping of PyTorch.
  EXPECT_EQ(Ranks(", virtual: 4, style: v", 3, 12), "012210012210");
}

TEST(PipelineLanguage, PipelineRejectsIndivisibleLayers) {
  EXPECT_EQ(Ranks("", 3, 8),
            "x.yaml:5:50: error: 8 layers cannot be divided equally among 3 stages");
  EXPECT_EQ(
      Ranks(", first_counts_as: 1", 2, 8),
      "x.yaml:5:50: error: 8 layers and 1 for the ends cannot be divided equally among 2 stages");
  EXPECT_EQ(Ranks(", layers_in_first: 4", 2, 4),
            "x.yaml:5:50: error: 4 of 4 layers are on the ranks at the ends, with 1 rank between");
  EXPECT_EQ(Ranks(", layers_in_first: 2", 3, 5),
            "x.yaml:5:50: error: 3 layers cannot be divided equally among 2 ranks");
  EXPECT_EQ(Ranks(", layers_in_last: 3, virtual: 2", 2, 9),
            "x.yaml:5:50: error: the 3 layers of rank 1 cannot be divided equally among 2 virtual "
            "stages");
  EXPECT_EQ(Ranks(", layers_in_last: 3, layers_in_first: 4", 1, 4),
            "x.yaml:5:50: error: the only rank has 3 layers, but there are 4");
  EXPECT_EQ(Ranks(", remainder: first", 4, 3),
            "x.yaml:5:50: error: 3 layers for 4 stages are 0 for each, too few");
  EXPECT_EQ(Ranks(", layers_in_last: 0", 2, 8).substr(0, 21), "x.yaml:5:106: error: ");
  EXPECT_EQ(Ranks(", layers_in_last: 2, remainder: first", 2, 8),
            "x.yaml:5:90: error: `layers_in_last` and `remainder` exclude each other");
  EXPECT_EQ(Ranks(", first_counts_as: 1, stages: [1, 3]", 2, 4),
            "x.yaml:5:90: error: `first_counts_as` and `stages` exclude each other");
  EXPECT_EQ(Ranks(", stages: [1, 2]", 2, 4),
            "x.yaml:5:98: error: the stages have 3 layers, but there are 4");
  EXPECT_EQ(Ranks(", stages: [4]", 2, 4),
            "x.yaml:5:98: error: 1 stages are listed, but there are 2: 2 ranks × 1 virtual");
  EXPECT_EQ(Ranks(", stages: [[0, 1], [1]]", 2, 2),
            "x.yaml:5:108: error: layer 1 is on two stages, 0 and 1");
  EXPECT_EQ(Ranks(", stages: [[0], [1]]", 2, 3), "x.yaml:5:98: error: no stage has layer 2");
  EXPECT_EQ(Cuts(" {pipeline: {layers: 'layers.*', count: 2, first: [embed.weight]}}",
                 "mesh: {axes: {pipe: 2}}\n")
                .substr(0, 53),
            "x.yaml:5:12: error: no stage has `norm.weight`\n  shar");
}

// Places where `sharding` may appear.

TEST(Languages, RejectsUnknownLanguages) {
  EXPECT_EQ(One(" fdsp", "[8]"),
            "x.yaml:5:11: error: unknown sharding `fdsp`\n"
            "  sharding: fdsp\n"
            "            ^^^^\n"
            "  hint: did you mean `fsdp`?\n");
  EXPECT_EQ(One(" {halliax: {a: b}}", "[8]").substr(0, 43),
            "x.yaml:5:25: error: `b` is not a placement\n");
  EXPECT_EQ(Cuts(" fsdp\nrules: [{a: fsdp}]"),
            "x.yaml:5:11: error: a spec has `rules` or `sharding`, not both\n"
            "  sharding: fsdp\n"
            "            ^^^^\n"
            "  hint: `sharding: {rules: [...]}` combines rules with other languages\n");
}

TEST(ParsePython, PythonValuesSurviveARoundTrip) {
  const auto text = [](std::string_view of) {
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = of;
    Diagnostics diagnostics;
    const auto value = ParsePython(node, diagnostics);
    const auto print = [](const PythonValue& v, const auto& self) -> std::string {
      std::string out = v.keyword.empty() ? "" : v.keyword + "=";
      if (v.kind == PythonValue::kName) return out + v.text;
      if (v.kind == PythonValue::kNone) return out + "-";
      out += v.name + "[";
      for (const PythonValue& item : v.items) out += self(item, self) + ";";
      return out + "]";
    };
    return value ? print(*value, print) : Render(diagnostics.all()).substr(0, 5);
  };
  EXPECT_EQ(text("P('a', None, ('b', \"c\"))"), "P[a;-;[b;c;];]");
  EXPECT_EQ(text("(('a', 'b'), None)"), "[[a;b;];-;]");
  EXPECT_EQ(text("('a',)"), "[a;]");
  EXPECT_EQ(text("('a')"), "a");
  EXPECT_EQ(text("Shard(dim=max(0, 1))"), "Shard[dim=max[0;1;];]");
  EXPECT_EQ(text("S(a == b)"), "S[a == b;]");
  EXPECT_EQ(text("P()"), "P[]");
  for (const char* bad : {"P(", "P(a", "P('a)", "P(a))", "(a,,b)", "P('a'b)"}) {
    EXPECT_EQ(text(bad), "error") << bad;
  }
}

}  // namespace
}  // namespace shardinit
