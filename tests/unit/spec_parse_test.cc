#include <gtest/gtest.h>

#include "base/error.h"
#include "spec/parse.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

// Prints all contents of a spec.
std::string Print(const std::vector<Named<ExprPtr>>& values) {
  std::string out;
  for (const Named<ExprPtr>& value : values) {
    out += (out.empty() ? "" : ", ") + value.name.value + ": " + TextOf(*value.value);
  }
  return "{" + out + "}";
}

std::string Print(const VarSpec& variable) {
  std::string out;
  for (const ExprPtr& item : variable.items) out += (out.empty() ? "" : ", ") + TextOf(*item);
  return variable.is_list ? "[" + out + "]" : out;
}

std::string Print(const std::vector<Named<VarSpec>>& variables) {
  std::string out;
  for (const auto& [name, value] : variables) {
    out += (out.empty() ? "" : ", ") + name.value + ": " + Print(value);
  }
  return "{" + out + "}";
}

std::string Print(const InitSpec& init) { return init.name.value + Print(init.arguments); }

std::string Print(const AxisList& axes) {
  std::string out;
  for (const Located<std::string>& axis : axes.value) out += axis.value + " ";
  return "[" + out + "]";
}

std::string Print(const TensorSpec& tensor) {
  std::string out = "(";
  for (const ExprPtr& extent : tensor.shape) out += TextOf(*extent) + " ";
  out += ")";
  if (tensor.axes) {
    out += " axes";
    for (const auto& axis : tensor.axes->value) {
      out += " " + (axis.value.empty() ? "null" : axis.value);
    }
  }
  if (tensor.dtype) out += " dtype " + tensor.dtype->value;
  if (tensor.init) out += " init " + Print(*tensor.init);
  if (tensor.shard) {
    out += " shard";
    for (const ShardSpec& by : tensor.shard->value) out += " " + Print(by.axes);
  }
  if (tensor.uneven) out += " uneven " + tensor.uneven->value;
  if (tensor.key) out += " key " + std::get<Located<std::string>>(*tensor.key).value;
  return out;
}

std::string Print(const ModuleSpec& module, const std::string& indent = "") {
  std::string out;
  if (module.repeat) {
    out +=
        indent + "repeat " + module.repeat->name.value + " " + Print(module.repeat->value) + "\n";
  }
  for (const Named<ModuleMember>& member : module.members) {
    out += indent + member.name.value;
    if (const auto* tensor = std::get_if<TensorSpec>(&member.value)) {
      out += " " + Print(*tensor) + "\n";
    } else {
      out += "\n" + Print(*std::get<std::unique_ptr<ModuleSpec>>(member.value), indent + "  ");
    }
  }
  return out;
}

TEST(LoadSpec, ReadsEveryKey) {
  const SpecOutcome outcome = LoadText(
      "shardinit: 1\n"
      "name: llama3.1-405b\n"
      "seed: 7\n"
      "dtype: bf16\n"
      "engine: philox4x32\n"
      "uneven: chunk\n"
      "replicas: full\n"
      "vars: {d: 16, ff: \"max(4 * d, 3)\"}\n"
      "mesh: {axes: {fsdp: 4, tensor: d / 8}}\n"
      "rules:\n"
      "  - {vocab: tensor}\n"
      "  - {embed: [fsdp, tensor]}\n"
      "  - {norm: null}\n"
      "init:\n"
      "  base: {normal: {std: 0.02}}\n"
      "  bias: zeros\n"
      "modules:\n"
      "  model:\n"
      "    embed.weight: {shape: [d, 3], axes: [vocab, null], init: base}\n"
      "    layers:\n"
      "      repeat: {layer: 3}\n"
      "      w: {shape: [], init: {uniform: {low: -1, high: 1}}, dtype: f32,\n"
      "          shard: [], uneven: error, key: other.w}\n"
      "    out: {shape: [d, d], init: ones, shard: [null, [fsdp, tensor]]}\n");
  EXPECT_EQ(outcome.messages, "");
  const ModelSpec& model = outcome.model;
  EXPECT_EQ(model.name.value, "llama3.1-405b");
  EXPECT_EQ(TextOf(*model.seed), "7");
  EXPECT_EQ(model.dtype->value, "bf16");
  EXPECT_EQ(model.engine->value, "philox4x32");
  EXPECT_EQ(model.uneven->value, "chunk");
  EXPECT_EQ(model.replicas->value, "full");
  EXPECT_EQ(Print(model.vars), "{d: 16, ff: max(4 * d, 3)}");
  EXPECT_EQ(Print(model.mesh), "{fsdp: 4, tensor: d / 8}");
  EXPECT_TRUE(model.has_rules);
  ASSERT_EQ(model.rules.size(), 3u);
  EXPECT_EQ(Print(model.rules[1].axes), "[fsdp tensor ]");
  EXPECT_EQ(Print(model.rules[2].axes), "[]");
  ASSERT_EQ(model.inits.size(), 2u);
  EXPECT_EQ(Print(model.inits[0].value), "normal{std: 0.02}");
  EXPECT_EQ(Print(model.inits[1].value), "zeros{}");
  EXPECT_EQ(Print(model.modules),
            "model\n"
            "  embed.weight (d 3 ) axes vocab null init base{}\n"
            "  layers\n"
            "    repeat layer 3\n"
            "    w () dtype f32 init uniform{low: -1, high: 1} shard uneven "
            "error key other.w\n"
            "  out (d d ) init ones{} shard [] [fsdp tensor ]\n");
}

TEST(LoadSpec, SpecsNeedVersionNameAndModules) {
  EXPECT_EQ(LoadText("seed: 1\n").messages,
            "x.yaml: error: the spec has no `shardinit`\n"
            "  hint: start with `shardinit: 1`, the version of the format\n"
            "x.yaml: error: the spec has no `name`\n"
            "x.yaml: error: the spec has no `modules`\n"
            "  hint: name modules and tensors, as in `{w: {shape: [8, 16], init: zeros}}`\n");
  EXPECT_EQ(LoadText("").messages,
            "x.yaml: error: the spec is empty\n"
            "  hint: a spec starts with `shardinit: 1`\n");
  EXPECT_EQ(LoadText("[1]").messages,
            "x.yaml:1:1: error: a spec is a mapping, not a list\n"
            "  [1]\n  ^^^\n"
            "  hint: a spec starts with `shardinit: 1`\n");
  EXPECT_EQ(LoadText("shardinit: 2\nname: x\nmodules: {a: {shape: [], init: "
                     "ones}}\n")
                .messages,
            "x.yaml:1:12: error: spec version must be 1, not `2`\n"
            "  shardinit: 2\n             ^\n"
            "  hint: this program reads version 1\n");
}

TEST(LoadSpec, MisspelledKeyIsOneMistake) {
  EXPECT_EQ(LoadText("shardinit: 1\nnaem: x\n"
                     "modules: {w: {shape: [], inti: ones}}\n")
                .messages,
            "x.yaml:2:1: error: unknown key `naem` in the spec\n"
            "  naem: x\n  ^^^^\n"
            "  hint: did you mean `name`?\n"
            "x.yaml:3:26: error: unknown key `inti` in tensor `w`\n"
            "  modules: {w: {shape: [], inti: ones}}\n"
            "                           ^^^^\n"
            "  hint: did you mean `init`?\n");
}

TEST(LoadSpec, ReportsMistakesInTensors) {
  const struct {
    std::string text, expected;
  } cases[] = {
      {"modules: {w: {init: ones}}\n",
       "x.yaml:3:11: error: tensor `w` has no `shape`\n"
       "  modules: {w: {init: ones}}\n            ^\n"
       "  hint: list its dimensions, such as `shape: [8, 16]`; `[]` is a "
       "scalar\n"},
      {"modules: {w: {shape: []}}\n",
       "x.yaml:3:11: error: tensor `w` has no `init`\n"
       "  modules: {w: {shape: []}}\n            ^\n"
       "  hint: name an initializer, such as `init: zeros`\n"},
      {"modules: {w: {shape: 4, init: ones, axes: [a]}}\n",
       "x.yaml:3:22: error: `shape` must be a list, not `4`\n"
       "  modules: {w: {shape: 4, init: ones, axes: [a]}}\n"
       "                       ^\n"
       "  hint: list its dimensions, such as `shape: [8, 16]`; `[]` is a scalar\n"},
      {"modules: {w: {shape: [4, null], init: ones}}\n",
       "x.yaml:3:26: error: a dimension must be a number or an expression, not "
       "nothing\n"
       "  modules: {w: {shape: [4, null], init: ones}}\n"
       "                           ^^^^\n"
       "  hint: write it as in `4096` or `2 * d`\n"},
      {"modules: {w: {shape: ['4', '1-2'], init: ones}}\n",
       "x.yaml:3:23: error: a dimension must be a number, but `4` in quotes is "
       "text\n"
       "  modules: {w: {shape: ['4', '1-2'], init: ones}}\n"
       "                        ^^^\n"
       "  hint: remove the quotes; they are for expressions with commas\n"},
      {"modules: {w: {shape: [], init: ones, key: \"\\e\"}}\n",
       "x.yaml:3:43: error: key `\\x1b` has a control character\n"
       "  modules: {w: {shape: [], init: ones, key: \"\\e\"}}\n"
       "                                            ^^^^\n"},
      {"modules: {w: {<<: {}, init: ones}}\n",
       "x.yaml:3:15: error: merge keys are not supported\n"
       "  modules: {w: {<<: {}, init: ones}}\n"
       "                ^^\n"
       "  hint: use `include`, or repeat the keys\n"},
      {"modules: {w: {shape: [max(1, 2), 3], init: ones}}\n",
       "x.yaml:3:23: error: a comma ends the value here, inside the "
       "parentheses\n"
       "  modules: {w: {shape: [max(1, 2), 3], init: ones}}\n"
       "                        ^^^^^\n"
       "  hint: put the whole expression in quotes: `\"max(1, 2)\"`\n"},
      {"modules: {w: {shape: [4], axes: [a, b], init: ones}}\n",
       "x.yaml:3:33: error: `axes` has 2 names, but the shape has 1 dimension\n"
       "  modules: {w: {shape: [4], axes: [a, b], init: ones}}\n"
       "                                  ^^^^^^\n"
       "  hint: name one logical axis for each dimension; `null` for none\n"
       "x.yaml:3:22: note: the shape\n"
       "  modules: {w: {shape: [4], axes: [a, b], init: ones}}\n"
       "                       ^^^\n"},
      {"modules: {w: {shape: [4], shard: [a, null], init: ones}}\n",
       "x.yaml:3:34: error: `shard` has 2 entries, but the shape has 1 "
       "dimension\n"
       "  modules: {w: {shape: [4], shard: [a, null], init: ones}}\n"
       "                                   ^^^^^^^^^\n"
       "  hint: give at most one entry for each dimension\n"
       "x.yaml:3:22: note: the shape\n"
       "  modules: {w: {shape: [4], shard: [a, null], init: ones}}\n"
       "                       ^^^\n"},
      {"modules: {w: 4}\n",
       "x.yaml:3:14: error: `w` must be a tensor or a module, which are "
       "mappings, not `4`\n"
       "  modules: {w: 4}\n               ^\n"
       "  hint: a tensor has the form `{shape: [8, 16], init: zeros}`\n"},
      {"modules: {m: {repeat: {i: 2}}}\n",
       "x.yaml:3:11: error: module `m` is empty\n"
       "  modules: {m: {repeat: {i: 2}}}\n            ^\n"},
      {"modules: {repeat: {i: 2, j: 3}, w: {shape: [], init: ones}}\n",
       "x.yaml:3:19: error: `repeat` has one variable, not 2\n"
       "  modules: {repeat: {i: 2, j: 3}, w: {shape: [], init: ones}}\n"
       "                    ^^^^^^^^^^^^\n"
       "  hint: write it as in `repeat: {layer: 32}`\n"},
      {"modules: {w: {shape: [], init: {normal: 1}}}\n",
       "x.yaml:3:41: error: `normal` must be a mapping, not `1`\n"
       "  modules: {w: {shape: [], init: {normal: 1}}}\n"
       "                                          ^\n"
       "  hint: arguments have names, as in `{normal: {std: 0.02}}`\n"},
      {"modules: {w: {shape: [], init: {ones: {}, zeros: {}}}}\n",
       "x.yaml:3:32: error: an initializer has one name, not 2\n"
       "  modules: {w: {shape: [], init: {ones: {}, zeros: {}}}}\n"
       "                                 ^^^^^^^^^^^^^^^^^^^^^\n"
       "  hint: write a name, such as `zeros`, or `{normal: {std: 0.02}}`\n"},
  };
  for (const auto& c : cases) EXPECT_EQ(MessagesFor(c.text), c.expected);
}

TEST(LoadSpec, ReportsMistakesAtTheTopLevel) {
  const struct {
    std::string text, expected;
  } cases[] = {
      {"seed: true\n",
       "x.yaml:3:7: error: `seed` must be a number or an expression, not "
       "`true`\n"
       "  seed: true\n        ^^^^\n  hint: write it as in `4096` or `2 * d`\n"},
      {"seed: \"1\\t+ 2\"\n",
       "x.yaml:3:7: error: `seed` must be an expression in one line, without "
       "escapes\n"
       "  seed: \"1\\t+ 2\"\n        ^^^^^^^^\n"},
      {"seed: 1\n  + 2\n",
       "x.yaml:3:7: error: this text continues on the next line\n"
       "  seed: 1\n        ^\n"
       "  hint: check the indentation of the next line, or put the text in "
       "quotes\n"},
      {"seed: '2 +'\n",
       "x.yaml:3:10: error: expected a number, a name or `(`, but the "
       "expression ends\n"
       "  seed: '2 +'\n           ^\n"},
      {"dtype: 32\n",
       "x.yaml:3:8: error: `dtype` must be text, not `32`\n"
       "  dtype: 32\n         ^^\n  hint: put it in quotes\n"},
      {"uneven: chunks\n",
       "x.yaml:3:9: error: `uneven` must be `error`, `chunk` or `pad`, not `chunks`\n"
       "  uneven: chunks\n          ^^^^^^\n"
       "  hint: did you mean `chunk`?\n"},
      {"replicas: all\n",
       "x.yaml:3:11: error: `replicas` must be `dedupe` or `full`, not `all`\n"
       "  replicas: all\n            ^^^\n"},
      {"mesh: {fsdp: 4}\n",
       "x.yaml:3:1: error: `mesh` has no `axes`\n"
       "  mesh: {fsdp: 4}\n  ^^^^\n"
       "  hint: write `mesh: {axes: {fsdp: …}}`\n"},
      {"mesh: {axis: {fsdp: 4}}\n",
       "x.yaml:3:8: error: unknown key `axis` in `mesh`\n"
       "  mesh: {axis: {fsdp: 4}}\n         ^^^^\n"
       "  hint: did you mean `axes`?\n"},
      {"mesh: {axes: {2d: 4}}\n",
       "x.yaml:3:15: error: mesh axis `2d` has the character `2`\n"
       "  mesh: {axes: {2d: 4}}\n                ^\n"
       "  hint: use letters, digits and `_`, not a digit first\n"},
      {"rules: {embed: fsdp}\n",
       "x.yaml:3:8: error: `rules` must be a list, not a mapping\n"
       "  rules: {embed: fsdp}\n         ^^^^^^^^^^^^^\n"
       "  hint: a rule has the form `{logical: axis}`, `{logical: [axis, "
       "axis]}` or `{logical: null}`\n"},
      {"rules: [{a: x, b: y}]\n",
       "x.yaml:3:9: error: a rule has one entry, not 2\n"
       "  rules: [{a: x, b: y}]\n          ^^^^^^^^^^^^\n"
       "  hint: a rule has the form `{logical: axis}`, `{logical: [axis, "
       "axis]}` or `{logical: null}`\n"},
  };
  for (const auto& c : cases) EXPECT_EQ(MessagesFor(c.text), c.expected);
}

// Returns the first line of the message about a tensor called `name` (as YAML).
std::string NameMessage(const std::string& name) {
  const std::string messages = MessagesFor("modules:\n  " + name + ": {shape: [], init: ones}\n");
  return messages.substr(0, messages.find('\n'));
}

TEST(LoadSpec, ReportsInvalidNames) {
  EXPECT_EQ(NameMessage("a.b-c_d.0"), "");
  EXPECT_EQ(NameMessage("''"), "x.yaml:4:3: error: a name is empty");
  EXPECT_EQ(NameMessage("a..b"), "x.yaml:4:5: error: name `a..b` has an empty part");
  EXPECT_EQ(NameMessage(".a"), "x.yaml:4:3: error: name `.a` has an empty part");
  EXPECT_EQ(NameMessage("a."), "x.yaml:4:4: error: name `a.` has an empty part");
  EXPECT_EQ(NameMessage(".."), "x.yaml:4:3: error: `..` is not a name");
  EXPECT_EQ(NameMessage("a/../b"), "x.yaml:4:4: error: name `a/../b` has a slash");
  EXPECT_EQ(NameMessage("\"a\\nb\""), "x.yaml:4:3: error: name `a\\nb` has a control character");
  EXPECT_EQ(NameMessage("\"a\\eb\""), "x.yaml:4:3: error: name `a\\x1bb` has a control character");
  EXPECT_EQ(NameMessage("a b"), "x.yaml:4:4: error: name `a b` has the character ` `");
  EXPECT_EQ(NameMessage("\"a é\""), "x.yaml:4:5: error: name `a é` has the character ` `");
  EXPECT_EQ(NameMessage("poids_é"), "x.yaml:4:9: error: name `poids_é` has the character `é`");
  EXPECT_EQ(NameMessage(std::string(256, 'a')),
            "x.yaml:4:3: error: this part of a path is 256 bytes long, more "
            "than 255");
  std::string path = std::string(200, 'a');
  for (int i = 0; i < 4; ++i) path += "." + std::string(200, 'a');
  EXPECT_EQ(NameMessage("m: {" + path +
                        ".bbbbbbbbbbbbbbbbbbb: &a {shape: [], "
                        "init: ones}, b: *a}\n  c"),
            "x.yaml:4:7: error: this path is 1026 bytes long, more than 1024");
  EXPECT_EQ(LoadText("shardinit: 1\nname: ../x\n"
                     "modules: {w: {shape: [], init: ones}}\n")
                .messages,
            "x.yaml:2:9: error: the model's name `../x` has a slash\n"
            "  name: ../x\n          ^\n"
            "  hint: separate the parts of a path by dots\n");
}

// Includes.

constexpr char kModules[] = "modules: {w: {shape: [d], init: base}}\n";

TEST(Include, IncludesMergeMappingsAndReplaceTheRest) {
  const SpecOutcome outcome =
      LoadFiles({{"x.yaml",
                  "shardinit: 1\nname: x\ninclude: [a.yaml, lib/b.yaml]\n"
                  "vars: {d: 3}\nrules: [{own: null}]\n"
                  "init: {base: {uniform: {low: 0, high: 1}}}\n"},
                 {"a.yaml", std::string("shardinit: 1\nvars: {d: 1, e: 1}\nseed: 1\n"
                                        "rules: [{a: x}, {b: y}]\n"
                                        "init: {base: {normal: {std: 1}}}\n") +
                                kModules},
                 {"lib/b.yaml", "include: c.yaml\nvars: {e: 2}\n"},
                 {"lib/c.yaml", "vars: {f: 9}\nseed: 2\n"}});
  EXPECT_EQ(outcome.messages, "");
  EXPECT_EQ(Print(outcome.model.vars), "{d: 3, e: 2, f: 9}");
  EXPECT_EQ(TextOf(*outcome.model.seed), "2");
  ASSERT_EQ(outcome.model.rules.size(), 1u);
  EXPECT_EQ(Print(outcome.model.inits[0].value), "uniform{low: 0, high: 1}");
}

TEST(Include, IncludesReplaceATensorsWholeInitializer) {
  const SpecOutcome outcome =
      LoadFiles({{"x.yaml",
                  "shardinit: 1\nname: x\ninclude: a.yaml\n"
                  "modules: {w: {init: {uniform: {low: 0, high: 1}}}}\n"},
                 {"a.yaml", "modules: {w: {shape: [4], init: {normal: {std: 1}}}}\n"}});
  EXPECT_EQ(outcome.messages, "");
  EXPECT_EQ(Print(outcome.model.modules), "w (4 ) init uniform{low: 0, high: 1}\n");
}

TEST(Include, MistakesAreReportedInTheIncludedFile) {
  EXPECT_EQ(LoadFiles({{"x.yaml",
                        "shardinit: 1\nname: x\n"
                        "include: lib/a.yaml\n"},
                       {"lib/a.yaml", "modules: {w: {shape: [4]}}\n"}})
                .messages,
            "lib/a.yaml:1:11: error: tensor `w` has no `init`\n"
            "  modules: {w: {shape: [4]}}\n"
            "            ^\n"
            "  hint: name an initializer, such as `init: zeros`\n");
  const std::string missing = LoadFiles({{"x.yaml", std::string("shardinit: 1\nname: x\n"
                                                                "include: no.yaml\n") +
                                                        kModules}})
                                  .messages;
  EXPECT_TRUE(missing.starts_with("x.yaml:3:10: error: ")) << missing;
  EXPECT_NE(missing.find("no.yaml"), std::string::npos);
  EXPECT_EQ(LoadFiles({{"x.yaml", std::string("shardinit: 1\nname: x\n"
                                              "include: {a: b}\n") +
                                      kModules}})
                .messages,
            "x.yaml:3:10: error: `include` takes the path of a file, not a "
            "mapping\n"
            "  include: {a: b}\n"
            "           ^^^^^^\n"
            "  hint: write `include: base.yaml` or `include: [a.yaml, "
            "b.yaml]`\n");
}

TEST(Include, RejectsCyclesAndDeepIncludes) {
  EXPECT_EQ(LoadFiles({{"x.yaml", std::string("shardinit: 1\nname: x\n"
                                              "include: a.yaml\n") +
                                      kModules},
                       {"a.yaml", "include: ./b.yaml\n"},
                       {"b.yaml", "include: a.yaml\n"}})
                .messages,
            "./b.yaml:1:10: error: `./a.yaml` includes itself\n"
            "  include: a.yaml\n"
            "           ^^^^^^\n"
            "x.yaml:3:10: note: first included here\n"
            "  include: a.yaml\n"
            "           ^^^^^^\n");
  std::map<std::string, std::string> files = {
      {"x.yaml", std::string("shardinit: 1\nname: x\ninclude: 1.yaml\n") + kModules}};
  for (int i = 1; i <= 17; ++i) {
    files[std::to_string(i) + ".yaml"] = "include: " + std::to_string(i + 1) + ".yaml\n";
  }
  EXPECT_EQ(LoadFiles(files).messages,
            "16.yaml:1:10: error: files are included more than 16 levels deep\n"
            "  include: 17.yaml\n"
            "           ^^^^^^^\n");
}

TEST(Include, FileIncludedTwiceIsReadOnce) {
  // There are 2^15 ways to the last file.
  std::map<std::string, std::string> files = {
      {"x.yaml", std::string("shardinit: 1\nname: x\ninclude: [1.yaml, 1.yaml]\n") + kModules},
      {"16.yaml", "vars: {d: 1}\n"}};
  for (int i = 1; i < 16; ++i) {
    const std::string next = std::to_string(i + 1) + ".yaml";
    files[std::to_string(i) + ".yaml"] = "include: [" + next + ", " + next + "]\n";
  }
  EXPECT_EQ(LoadFiles(files).messages, "");
}

// Overrides.

constexpr char kSpec[] =
    "vars: {d: 1}\n"
    "mesh: {axes: {fsdp: 8, tensor: 4}}\n"
    "rules:\n"
    "  - {a: fsdp}\n"
    "modules:\n"
    "  model:\n"
    "    embed.weight: {shape: [d], init: ones}\n"
    "    embed: {bias: {shape: [1, 2], init: ones}}\n";

ModelSpec ModelWith(std::vector<std::string> sets, std::string mesh = {}) {
  SpecOutcome outcome =
      LoadText(std::string("shardinit: 1\nname: x\n") + kSpec, std::move(sets), std::move(mesh));
  EXPECT_EQ(outcome.messages, "");
  return std::move(outcome.model);
}

TEST(Override, OverridesReplaceKeysOfAnyDepth) {
  const ModelSpec model = ModelWith({"vars.d=1", "vars.d=2 * 8", "rules.0={b: [fsdp, tensor]}",
                                     "seed=5", "uneven=chunk", "mesh.axes.fsdp=2",
                                     "modules.model.embed.weight.init={normal: {std: 0.1}}",
                                     "modules.model.embed.bias.shape.1=7"});
  EXPECT_EQ(Print(model.vars), "{d: 2 * 8}");
  EXPECT_EQ(TextOf(*model.seed), "5");
  EXPECT_EQ(model.uneven->value, "chunk");
  EXPECT_EQ(Print(model.mesh), "{fsdp: 2, tensor: 4}");
  EXPECT_EQ(Print(model.rules[0].axes), "[fsdp tensor ]");
  EXPECT_EQ(Print(model.modules),
            "model\n"
            "  embed.weight (d ) init normal{std: 0.1}\n"
            "  embed\n"
            "    bias (1 7 ) init ones{}\n");
}

TEST(Override, OverridesAddMissingKeys) {
  const ModelSpec model =
      ModelWith({"vars.heads=4", "+vars.D=5", "vars.d2=6", "init.base.normal.std=0.5",
                 "mesh.axes.pipe=2", "mesh.slices.pipe=2", "training.tokens=9", "rules.+={c: null}",
                 "rules.2={e: fsdp}", "assert.0=heads == 4", "config.of.name=a",
                 "modules.model.q.weight={shape: [heads], init: base}",
                 "modules.model.embed.weight.dtype=f32", "modules.model.embed.bias.shape.+=3"});
  EXPECT_EQ(Print(model.vars), "{d: 1, heads: 4, D: 5, d2: 6}");
  EXPECT_EQ(model.inits[0].name.value, "base");
  EXPECT_EQ(Print(model.mesh), "{fsdp: 8, tensor: 4, pipe: 2}");
  EXPECT_EQ(Print(model.slices), "{pipe: 2}");
  EXPECT_EQ(TextOf(*model.training.tokens), "9");
  EXPECT_EQ(model.rules.size(), 3u);
  EXPECT_EQ(model.assertions.size(), 1u);
  EXPECT_EQ(Print(model.modules),
            "model\n"
            "  embed.weight (d ) dtype f32 init ones{}\n"
            "  embed\n"
            "    bias (1 2 3 ) init ones{}\n"
            "  q.weight (heads ) init base{}\n");
}

TEST(Override, MistakesShowTheOverride) {
  const struct {
    std::string set, expected;
  } cases[] = {
      {"sed=1",
       "--set:1:1: error: the spec has no key `sed`\n  sed=1\n  ^^^\n"
       "  hint: did you mean `seed`?\n"},
      {"vars.D=1",
       "--set:1:6: error: `vars` has no key `D`\n  vars.D=1\n       ^\n"
       "  hint: did you mean `d`? `+vars.D=…` adds it\n"},
      {"+vars.d=1",
       "--set:1:2: error: the spec has `vars.d` already\n  +vars.d=1\n   ^^^^^^\n"
       "  hint: leave out the `+` to set it\n"},
      {"training.tokns=1",
       "--set:1:10: error: `training` has no key `tokns`\n  training.tokns=1\n"
       "           ^^^^^\n"
       "  hint: did you mean `tokens`?\n"},
      {"layouts.x.",
       "--set:1:1: error: an override has the form `path=value`\n  layouts.x.\n"
       "  ^^^^^^^^^^\n"
       "  hint: write it as in `--set seed=1`\n"},
      {"modules.model.embed.weigth.init=ones",
       "--set:1:21: error: `modules.model.embed` has no key `weigth.init`\n"
       "  modules.model.embed.weigth.init=ones\n"
       "                      ^^^^^^^^^^^\n"
       "  hint: a tensor is added as a whole, as in `modules.model.embed.weigth={shape: "
       "[8, 16], init: "
       "zeros}`\n"},
      {"modules.model.embd.weight.init=ones",
       "--set:1:15: error: `modules.model` has no key `embd.weight.init`\n"
       "  modules.model.embd.weight.init=ones\n"
       "                ^^^^^^^^^^^^^^^^\n"
       "  hint: did you mean `embed.weight`?\n"},
      {"rules.2={a: b}",
       "--set:1:7: error: `rules` has no item `2`\n  rules.2={a: b}\n"
       "        ^\n"
       "  hint: it is a list of 1; items count from 0, and `+` adds one\n"},
      {"vars.d.x=1",
       "--set:1:8: error: `vars.d` has no keys, so there is no `x`\n"
       "  vars.d.x=1\n         ^\n"
       "  hint: it is `1`\n"},
      {"include=a.yaml",
       "--set:1:1: error: `include` cannot be set\n  include=a.yaml\n"
       "  ^^^^^^^\n"
       "  hint: set the included file's keys\n"},
      {"seed",
       "--set:1:1: error: an override has the form `path=value`\n  seed\n"
       "  ^^^^\n"
       "  hint: write it as in `--set seed=1`\n"},
      {"seed=2 *",
       "--set:1:8: error: expected a number, a name or `(`, but the "
       "expression ends\n  seed=2 *\n         ^\n"},
      {"seed=",
       "--set:1:1: error: `seed` must be a number or an expression, not "
       "nothing\n  seed=\n  ^^^^^\n"
       "  hint: write it as in `4096` or `2 * d`\n"},
      {"vars=a: 1",
       "--set:1:6: error: a mapping or list on the command line needs "
       "brackets\n  vars=a: 1\n       ^^^^\n"
       "  hint: write `{key: value}`\n"},
      {"vars={d: 1",
       "--set:1:6: error: `{` is never closed\n  vars={d: 1\n       ^\n"
       "  hint: a `}` or a comma is missing at or before line 1\n"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(MessagesFor(kSpec, {c.set}), c.expected) << c.set;
  }
}

TEST(Override, MeshGivesOrderAndSizes) {
  EXPECT_EQ(Print(ModelWith({}, "tensor=2,fsdp=3").mesh), "{tensor: 2, fsdp: 3}");
  EXPECT_EQ(Print(ModelWith({}, "tensor=2").mesh), "{tensor: 2, fsdp: 1}");
  EXPECT_EQ(MessagesFor(kSpec, {}, "tensr=2,fsdp=3,fsdp=3,tensor"),
            "--mesh:1:1: error: the spec declares no mesh axis `tensr`\n"
            "  tensr=2,fsdp=3,fsdp=3,tensor\n"
            "  ^^^^^\n"
            "  hint: did you mean `tensor`?\n"
            "--mesh:1:16: error: mesh axis `fsdp` is given twice\n"
            "  tensr=2,fsdp=3,fsdp=3,tensor\n"
            "                 ^^^^\n"
            "--mesh:1:23: error: mesh axes have the form "
            "`axis=size,axis=size`\n"
            "  tensr=2,fsdp=3,fsdp=3,tensor\n"
            "                        ^^^^^^\n");
}

TEST(Override, MeshDeclaresTheAxesOfASpecWithoutOne) {
  EXPECT_EQ(Print(LoadText("shardinit: 1\nname: a\nmodules: {w: {shape: [], init: zeros}}\n", {},
                           "data=2,model=3")
                      .model.mesh),
            "{data: 2, model: 3}");
}

TEST(LoadSpec, UnreadableFileIsNotASpecError) {
  const WorkingFolder folder({});
  Diagnostics diagnostics;
  EXPECT_THROW(LoadSpec({.path = "no.yaml", .sets = {}, .mesh = {}}, diagnostics), Error);
  EXPECT_THROW(LoadSpec({.path = "/dev/zero", .sets = {}, .mesh = {}}, diagnostics), Error);
}

TEST(Fans, FanOrderCanBeSetForSpecModuleAndTensor) {
  const SpecOutcome outcome = LoadText(
      "shardinit: 1\nname: x\nfans: in_out\n"
      "modules:\n"
      "  fans: out_in\n"
      "  w: {shape: [], init: ones, fans: in_out, batch_axis: -1}\n"
      "  v: {shape: [], init: ones, in_axis: embed, out_axis: [heads, -2]}\n");
  EXPECT_EQ(outcome.messages, "");
  EXPECT_EQ(outcome.model.fans->value, "in_out");
  EXPECT_EQ(outcome.model.modules.fans->value, "out_in");
  const auto& w = std::get<TensorSpec>(outcome.model.modules.members.front().value);
  EXPECT_EQ(w.fans->value, "in_out");
  EXPECT_EQ(std::get<int64_t>(w.batch_axis->value.at(0).value), -1);
  const auto& v = std::get<TensorSpec>(outcome.model.modules.members.back().value);
  EXPECT_EQ(std::get<std::string>(v.in_axis->value.at(0).value), "embed");
  EXPECT_EQ(std::get<std::string>(v.out_axis->value.at(0).value), "heads");
  EXPECT_EQ(std::get<int64_t>(v.out_axis->value.at(1).value), -2);
}

TEST(Fans, FanOrderMustBeKnown) {
  EXPECT_EQ(MessagesFor("fans: out_inn\n"),
            "x.yaml:3:7: error: `fans` must be `out_in` or `in_out`, not "
            "`out_inn`\n"
            "  fans: out_inn\n"
            "        ^^^^^^^\n"
            "  hint: did you mean `out_in`?\n");
  EXPECT_EQ(MessagesFor("modules:\n"
                        "  fans: {w: {shape: [], init: ones}}\n"
                        "  v: {shape: [], init: ones}\n"),
            "x.yaml:4:9: error: `fans` must be `out_in` or `in_out`, not a "
            "mapping\n"
            "    fans: {w: {shape: [], init: ones}}\n"
            "          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n");
  EXPECT_EQ(MessagesFor("modules: {m: {fans: out_in}}\n"),
            "x.yaml:3:11: error: module `m` is empty\n"
            "  modules: {m: {fans: out_in}}\n"
            "            ^\n");
}

TEST(Fans, FanOrderIsReportedOnce) {
  EXPECT_EQ(MessagesFor("modules: {w: {shape: [2, 3], init: ones, "
                        "fans: in_out, in_axis: 0}}\n"),
            "x.yaml:3:48: error: a tensor with `in_axis` cannot use "
            "`fans`\n"
            "  modules: {w: {shape: [2, 3], init: ones, fans: in_out, in_axis: "
            "0}}\n"
            "                                                 ^^^^^^\n"
            "  hint: remove one of the two\n");
}

TEST(Fans, FanAxesNameDimensions) {
  for (const char* number : {"99999999999999999999", "01", "+1", "0x1", "1e0"}) {
    const std::string messages =
        MessagesFor("modules: {w: {shape: [2], init: ones, in_axis: " + std::string(number) + "}}");
    EXPECT_NE(messages.find("error: `in_axis` must name a dimension, not `" + std::string(number) +
                            "`\n"),
              std::string::npos)
        << messages;
  }
  const std::string hint =
      "  hint: write a name of the tensor's `axes` or a position, such as `-2` "
      "for the last but one\n";
  EXPECT_EQ(MessagesFor("modules: {w: {shape: [2], init: ones, in_axis: 0.5}}"),
            "x.yaml:3:48: error: `in_axis` must name a dimension, not `0.5`\n"
            "  modules: {w: {shape: [2], init: ones, in_axis: 0.5}}\n"
            "                                                 ^^^\n" +
                hint);
  EXPECT_EQ(MessagesFor("modules: {w: {shape: [2], init: ones, out_axis: [true]}}"),
            "x.yaml:3:50: error: `out_axis` must name a dimension, not `true`\n"
            "  modules: {w: {shape: [2], init: ones, out_axis: [true]}}\n"
            "                                                   ^^^^\n" +
                hint);
  EXPECT_EQ(MessagesFor("modules: {w: {shape: [2], init: ones, batch_axis: null}}"),
            "x.yaml:3:51: error: `batch_axis` must name a dimension, not nothing\n"
            "  modules: {w: {shape: [2], init: ones, batch_axis: null}}\n"
            "                                                    ^^^^\n" +
                hint);
}

}  // namespace
}  // namespace shardinit
