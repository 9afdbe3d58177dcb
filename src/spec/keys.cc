// Lists all keys of a spec: a table for each mapping, a row for each key.
#include "spec/keys.h"

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text.h"
#include "spec/names.h"
#include "spec/parser.h"

namespace shardinit {
namespace {

// Readers for rows: they read a value into a field of a spec, or call a method of the parser.

// `kMethod` takes the entry or its value.
template <auto kField, auto kMethod, typename T>
void Into(SpecParser& parser, const SpecKey&, const Node::Entry& entry, T& out) {
  if constexpr (std::invocable<decltype(kMethod), SpecParser&, const Node::Entry&>) {
    out.*kField = std::invoke(kMethod, parser, entry);
  } else {
    out.*kField = std::invoke(kMethod, parser, *entry.value);
  }
}
template <auto kField, typename T>
void Number(SpecParser& parser, const SpecKey&, const Node::Entry& entry, T& out) {
  out.*kField = parser.ReadExpr(entry);
}
// Reads a number that may have a suffix, such as `80GB` or `4M`.
template <auto kField, auto kWithSuffix, typename T>
void ReadScaled(SpecParser& parser, const SpecKey&, const Node::Entry& entry, T& out) {
  Node node = *entry.value;
  const auto value = node.IsScalar() ? kWithSuffix(node.text) : std::nullopt;
  const std::string digits = fmt::to_string(value.value_or(0));
  if (value && node.text.find_first_of("kKMGT") != node.text.npos) {
    node.text = digits;
    node.quoted = false;
  }
  out.*kField = parser.ReadExpr({entry.key, &node});
}
template <auto kField, typename T>
void Choice(SpecParser& parser, const SpecKey& key, const Node::Entry& entry, T& out) {
  out.*kField = parser.ReadChoice(entry, key.words);
}
// Reads numbers by mesh axis.
template <auto kField>
void OfMeshAxes(SpecParser& parser, const SpecKey&, const Node::Entry& entry, ModelSpec& model) {
  model.*kField = parser.ReadExprs(entry, "mesh axis");
}
template <auto kField>
void Globs(SpecParser& parser, const SpecKey&, const Node::Entry& entry, ModuleSpec&) {
  parser.ReadGlobs(entry, parser.layout()->*kField);
}
// `kMethod` may take the row, for its hint.
template <auto kMethod, typename T>
void By(SpecParser& parser, const SpecKey& key, const Node::Entry& entry, T& out) {
  if constexpr (std::invocable<decltype(kMethod), SpecParser&, const Node::Entry&, T&>) {
    std::invoke(kMethod, parser, entry, out);
  } else {
    std::invoke(kMethod, parser, key, entry, out);
  }
}
template <typename T>
void Initializer(SpecParser& parser, const SpecKey&, const Node::Entry& entry, T& out) {
  if (auto init = parser.ReadInit(*entry.value)) {
    out.init = std::make_shared<const InitSpec>(*std::move(init));
  }
}
// Skips keys that were handled when files were merged, or that are read with other keys.
template <typename T>
void Nothing(SpecParser&, const SpecKey&, const Node::Entry&, T&) {}

constexpr std::string_view kFanOrders[] = {"out_in", "in_out"};
constexpr std::string_view kReplicaPolicies[] = {"dedupe", "full"};
constexpr std::string_view kTensorKinds[] = {"parameter", kBufferKind};
constexpr std::string_view kSliceOrders[] = {"outer", "inner"};

// Keys that several mappings have.
constexpr SpecKey kUneven = {
    .name = "uneven",
    .description =
        "what to do with a dimension that its mesh axes do not divide: `error`; `chunk`, by which "
        "every shard has ceil(size / count) rows and the last ones fewer or none; or `pad`, by "
        "which it is stored longer, by zeros or by the number of `{pad: NUMBER}`; of a tensor: "
        "instead of the spec's",
    .kind = SpecKind::kUneven};
constexpr SpecKey kVars = {
    .name = "vars",
    .description =
        "names for numbers, texts and lists, for use in expressions in the module; in "
        "any order, and in a repeat of its variable, too",
    .kind = SpecKind::kVariables};
constexpr SpecKey kDType = {
    .name = "dtype",
    .description =
        "the element type; the tensor's goes before the module's, and that before the "
        "spec's",
    .kind = SpecKind::kDType};
constexpr SpecKey kInit = {
    .name = "init",
    .description = "how elements are made; the tensor's goes before the module's",
    .kind = SpecKind::kInit};
constexpr SpecKey kFans = {
    .name = "fans",
    .description =
        "which dimensions fan_in and fan_out are counted over: `out_in`, [out, in, ...], as in "
        "PyTorch; `in_out`, [..., in, out], as in JAX and Keras; the tensor's goes before the "
        "module's, and that before the spec's",
    .kind = SpecKind::kChoice,
    .words = kFanOrders};
constexpr SpecKey kWhen = {
    .name = "when",
    .description = "the tensor or module is left out where this is 0; such as `layer < 3`",
    .kind = SpecKind::kCondition};
constexpr SpecKey kRepeat = {.name = "repeat",
                             .description =
                                 "the variable and how often, or the list whose items it has: "
                                 "members stand under <name>.0, <name>.1, … and may use the "
                                 "variable",
                             .kind = SpecKind::kRepeat};
constexpr SpecKey kAxes = {
    .name = "axes",
    .description = "the logical axis of each dimension, which `rules` map to mesh axes; null: none",
    .kind = SpecKind::kLogicalAxes,
    .hint = "list one logical axis for each dimension"};
constexpr SpecKey kShard = {
    .name = "shard",
    .description = "the mesh axes of each dimension, instead of `axes` and rules",
    .kind = SpecKind::kShard,
    .hint =
        "list one entry for each dimension: `axis`, `[axis, axis]`, `{axes: axis, segments: 2}` or "
        "`null`"};
constexpr SpecKey kStage = {
    .name = "stage",
    .description =
        "a pipeline's stage: on mesh axes, the index, or a list of them, of the ranks that hold "
        "the tensor or the module's tensors; instead of the stage of the module around",
    .kind = SpecKind::kStage};

constexpr SpecKey WithDefault(SpecKey key, std::string_view default_text) {
  key.default_text = default_text;
  return key;
}

template <typename T>
std::vector<SpecKey> RowsOf(const std::vector<KeyRow<T>>& keys) {
  return {keys.begin(), keys.end()};
}

}  // namespace

extern const std::vector<KeyRow<ModelSpec>> kModelKeys = {
    {{.name = "shardinit",
      .description = "the version of this format",
      .kind = SpecKind::kVersion,
      .required = true,
      .hint = "start with `shardinit: 1`, the version of the format"},
     Nothing},
    {{.name = "name",
      .description = "the model's name, which names folders",
      .kind = SpecKind::kName,
      .required = true},
     By<&SpecParser::ReadName>},
    {{.name = "seed",
      .description =
          "a whole number from 0 to 18446744073709551615; another seed gives another model",
      .kind = SpecKind::kNumber,
      .default_text = "0"},
     [](SpecParser& parser, const SpecKey&, const Node::Entry& entry, ModelSpec& model) {
       const auto seed = parser.ReadSeed(entry);
       if (const auto* expr = std::get_if<ExprPtr>(&seed)) {
         model.seed = *expr;
       } else {
         model.large_seed = {std::get<uint64_t>(seed), entry.value->span};
       }
     }},
    {{.name = "dtype",
      .description = "the element type of every tensor that has none of its own",
      .kind = SpecKind::kDType},
     Into<&ModelSpec::dtype, &SpecParser::ReadText>},
    {{.name = "engine", .description = "the random generator", .kind = SpecKind::kEngine},
     Into<&ModelSpec::engine, &SpecParser::ReadText>},
    {{.name = "vars",
      .description = "names for numbers, texts and lists, for use in expressions; in any order",
      .kind = SpecKind::kVariables},
     [](SpecParser& parser, const SpecKey&, const Node::Entry& entry, ModelSpec& model) {
       model.vars = parser.ReadVariables(entry, kVariable);
     }},
    {{.name = "assert",
      .description = "what must hold of the variables, such as `heads % kv_heads == 0`; those of "
                     "all included files must; null: not those",
      .kind = SpecKind::kAssertions,
      .hint = "list expressions, such as `[heads % kv_heads == 0]`"},
     By<&SpecParser::ReadAssertions>},
    {{.name = "mesh",
      .description = "the grid of ranks",
      .kind = SpecKind::kMesh,
      .hint = "write it as in `{axes: {data: 8}}`"},
     By<&SpecParser::ReadMesh>},
    {{.name = "bandwidth",
      .description =
          "the bytes a second that a rank sends over each mesh axis, for the cost of a sharding",
      .kind = SpecKind::kNumbers},
     OfMeshAxes<&ModelSpec::bandwidth>},
    {{.name = "training",
      .description = "facts about a training step, for the cost of a sharding",
      .kind = SpecKind::kTraining,
      .hint = "write it as in `{tokens: 8192}`"},
     By<&SpecParser::ReadTraining>},
    {{.name = "rules",
      .description = "logical axis to mesh axes, tried in order; repeat a name for a fallback",
      .kind = SpecKind::kRules,
      .hint =
          "a rule has the form `{logical: axis}`, `{logical: [axis, axis]}` or `{logical: null}`"},
     By<&SpecParser::ReadRules>},
    {{.name = "sharding",
      .description =
          "how tensors are sharded, instead of `rules`: a file, a word for automatic rules, a map "
          "from patterns of paths to mesh axes, or one or several languages",
      .kind = SpecKind::kSharding},
     [](SpecParser&, const SpecKey&, const Node::Entry& entry, ModelSpec& model) {
       if (!entry.value->IsNull()) model.sharding = CopyTree(*entry.value);
     }},
    {{.name = "sources",
      .description = "folders of tensors that exist, by name, for `init: {source: NAME}`",
      .kind = SpecKind::kSources,
      .hint = "write it as in `{base: {path: ../llama}}`"},
     By<&SpecParser::ReadSources>},
    {{.name = "init",
      .description = "initializers by name, for use in tensors",
      .kind = SpecKind::kInits,
      .hint = "write it as in `{base: {normal: {std: 0.02}}}`"},
     By<&SpecParser::ReadInits>},
    {{.name = "multipliers",
      .description = "by what a trainer multiplies, for the tensors of each initializer of `init`: "
                     "numbers that `explain` shows and that change no value; null: not those of an "
                     "included file",
      .kind = SpecKind::kMultipliers,
      .hint = "write it as in `{head: {output: 1 / 8}}`"},
     By<&SpecParser::ReadMultipliers>},
    {WithDefault(kUneven, "\"error\""), Into<&ModelSpec::uneven, &SpecParser::ReadUneven>},
    {{.name = "replicas",
      .description = "where a shard goes that several ranks hold: `dedupe`, into the file of the "
                     "lowest; `full`, into the file of each",
      .kind = SpecKind::kChoice,
      .words = kReplicaPolicies,
      .default_text = "\"dedupe\""},
     Choice<&ModelSpec::replicas>},
    {kFans, Choice<&ModelSpec::fans>},
    {{.name = "config",
      .description = "what `export --to safetensors` writes to config.json; text that begins with "
                     "`=` is an expression over `vars`; null: not that of an included file",
      .kind = SpecKind::kConfig,
      .hint = "write it as in `{model_type: llama}`"},
     By<&SpecParser::ReadConfig>},
    {{.name = "config_json",
      .description = "in the file of a family: how a config.json of Hugging Face becomes a spec "
                     "that includes it",
      .kind = SpecKind::kConfigJson},
     By<&SpecParser::ReadFamily>},
    {{.name = "include",
      .description = "files to start from, relative to this one or below `<shardinit>/`, which are "
                     "those that shardinit has; this file's keys replace theirs",
      .kind = SpecKind::kPaths},
     Nothing},
    {{.name = "blocks",
      .description = "modules with arguments by name, for use in `modules` and in other blocks",
      .kind = SpecKind::kBlocks},
     Nothing},
    {{.name = "modules",
      .description = "the tensors, in a tree",
      .kind = SpecKind::kModules,
      .required = true,
      .hint = "name modules and tensors, as in `{w: {shape: [8, 16], init: zeros}}`"},
     By<&SpecParser::ReadModules>},
    {{.name = "layouts",
      .description = "other ways to store the tensors, by name; --layout chooses one; null, for "
                     "one or all: not those of an included file",
      .kind = SpecKind::kLayouts,
      .hint = "it has layouts by name"},
     By<&SpecParser::ReadLayouts>},
};

extern const std::vector<KeyRow<AssertSpec>> kAssertKeys = {
    {{.name = "that",
      .description = "an expression, which holds unless it is 0",
      .kind = SpecKind::kNumber,
      .required = true,
      .hint = "write it as in `{that: d == 2 * heads, message: d is not twice heads}`"},
     Number<&AssertSpec::that>},
    {{.name = "message",
      .description = "what is wrong if it does not hold, for the error",
      .kind = SpecKind::kText},
     Into<&AssertSpec::message, &SpecParser::ReadText>},
    {{.name = "of",
      .description = "a variable of the model, without which nothing is checked",
      .kind = SpecKind::kText},
     Nothing},
};

extern const std::vector<KeyRow<SourceSpec>> kSourceKeys = {
    {{.name = "path",
      .description =
          "the folder, relative to the file that has it; `--source NAME=DIR` gives another",
      .kind = SpecKind::kText},
     Into<&SourceSpec::path, &SpecParser::ReadText>},
    {{.name = "part",
      .description = "which part of the folder's files is the model, as `--part-of-file` says; "
                     "names are then those within it",
      .kind = SpecKind::kText},
     Into<&SourceSpec::part, &SpecParser::ReadText>},
    {{.name = "digest",
      .description = "what the folder must hold: the digest that `shardinit digest` prints as "
                     "`(model)`, or a file that its `--write` made, of which only the tensors that "
                     "are used are checked; without it, the source may be any",
      .kind = SpecKind::kText},
     Into<&SourceSpec::digest, &SpecParser::ReadText>},
    {{.name = "layout",
      .description = "the layout that the folder has, of `spec`; names are then those of `spec`, "
                     "and with `hub`, if that has no such layout, they are already",
      .kind = SpecKind::kText},
     Into<&SourceSpec::layout, &SpecParser::ReadText>},
    {{.name = "spec",
      .description = "the spec of the model in the folder, for `layout`: a file, relative to the "
                     "one that has it, or a name; default: the folder's config.json",
      .kind = SpecKind::kText},
     Into<&SourceSpec::spec, &SpecParser::ReadText>},
    {{.name = "must_have",
      .description = "tensors that the folder must have; another shape or number is an error",
      .kind = SpecKind::kMustHave,
      .hint = "write it as in `[{tensor: \"layers.*.up.weight\", shape: [ff, d], count: layers}]`"},
     By<&SpecParser::ReadMustHave>},
};

extern const std::vector<KeyRow<MustHaveSpec>> kMustHaveKeys = {
    {{.name = "tensor",
      .description = "a pattern of names: `*` is a part of a name or some of it, `**` any number "
                     "of parts",
      .kind = SpecKind::kText,
      .required = true,
      .hint = "write it as in `{tensor: \"layers.*.up.weight\", shape: [ff, d]}`"},
     Into<&MustHaveSpec::tensor, &SpecParser::ReadText>},
    {{.name = "shape",
      .description = "the shape of each of them; without it, any",
      .kind = SpecKind::kShape,
      .hint = "list its dimensions, as in `[ff, d]`"},
     By<&SpecParser::ReadMustHaveShape>},
    {{.name = "count",
      .description = "how many there are; without it, at least one",
      .kind = SpecKind::kNumber},
     Number<&MustHaveSpec::count>},
};

extern const std::vector<KeyRow<ModelSpec>> kMeshKeys = {
    {{.name = "axes",
      .description = "the axes and their sizes; ranks are row-major, the last axis varies fastest; "
                     "as a list of one each, instead of those of an included file",
      .kind = SpecKind::kAxes,
      .required = true,
      .hint = "write `mesh: {axes: {data: 8}}`"},
     OfMeshAxes<&ModelSpec::mesh>},
    {{.name = "slices",
      .description =
          "for each axis, how many parts lie on different slices (DCN), the rest within one (ICI)",
      .kind = SpecKind::kNumbers},
     OfMeshAxes<&ModelSpec::slices>},
    {{.name = "slice_order",
      .description = "how an axis crosses slices: `outer`, its parts one after another, as in JAX "
                     "and MaxText; `inner`, at every step, as in torchprime",
      .kind = SpecKind::kChoice,
      .words = kSliceOrders,
      .default_text = "\"outer\""},
     Choice<&ModelSpec::slice_order>},
    {{.name = "devices",
      .description = "which device has which place: an order, a list of ids in row-major order of "
                     "coordinates, or a file with such a list, whose name has a `.` or a `/`",
      .kind = SpecKind::kDevices,
      .default_text = "\"row_major\""},
     By<&SpecParser::ReadDevices>},
};

extern const std::vector<KeyRow<TrainingSpec>> kTrainingKeys = {
    {{.name = "tokens",
      .description = "how many tokens of a step pass through the ranks of one place on the batch "
                     "axes, together, also as `4M` (of 1000) or `4Mi` (of 1024)",
      .kind = SpecKind::kNumber,
      .default_text = "8192"},
     ReadScaled<&TrainingSpec::tokens, CountWithSuffix>},
    {{.name = "memory_per_rank",
      .description = "the bytes that a rank has for weights, gradients, the optimizer's state and "
                     "activations, also as `80GB`",
      .kind = SpecKind::kNumber},
     ReadScaled<&TrainingSpec::memory_per_rank, SizeInBytes>},
    {{.name = "flops",
      .description = "operations a second that a rank computes",
      .kind = SpecKind::kNumber,
      .default_text = "400e12"},
     Number<&TrainingSpec::flops>},
    {{.name = "optimizer_bytes",
      .description = "bytes of the optimizer's state for each element of a weight: by default two "
                     "moments in f32, and a copy in f32 of what has fewer bytes",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::optimizer_bytes>},
    {{.name = "heads",
      .description = "how many heads attention has, if `config` does not say it",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::heads>},
    {{.name = "kv_heads",
      .description = "how many heads of keys and values, if these are others",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::kv_heads>},
    {{.name = "experts_per_token",
      .description = "to how many experts a token goes, if `config` does not say it",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::experts_per_token>},
    {{.name = "batch",
      .description = "the mesh axes that divide the batch, instead of those with such names",
      .kind = SpecKind::kMeshAxes},
     Into<&TrainingSpec::batch, &SpecParser::ReadMeshAxisList>},
    {{.name = "expert",
      .description = "the mesh axes that divide the batch and have whole experts each, instead of "
                     "those with such names",
      .kind = SpecKind::kMeshAxes},
     Into<&TrainingSpec::expert, &SpecParser::ReadMeshAxisList>},
    {{.name = "computation",
      .description =
          "the mesh axes that divide the work on the same tokens, instead of those with such names",
      .kind = SpecKind::kMeshAxes},
     Into<&TrainingSpec::computation, &SpecParser::ReadMeshAxisList>},
};

extern const std::vector<KeyRow<ShardSpec>> kShardKeys = {
    {{.name = "axes",
      .description = "the mesh axes that shard each segment",
      .kind = SpecKind::kMeshAxes,
      .required = true,
      .hint = "write it as in `{axes: tensor, segments: 2}`"},
     Into<&ShardSpec::axes, &SpecParser::ReadMeshAxisList>},
    {{.name = "segments",
      .description = "how many segments the dimension has; a rank has a part of each, such as of "
                     "gate and up, which lie one after the other",
      .kind = SpecKind::kNumber,
      .default_text = "1"},
     Number<&ShardSpec::segments>},
};

extern const std::vector<KeyRow<TensorSpec>> kTensorKeys = {
    {{.name = "shape",
      .description = "the size of each dimension; [] is a scalar",
      .kind = SpecKind::kShape,
      .required = true,
      .hint = "list its dimensions, such as `shape: [8, 16]`; `[]` is a scalar"},
     By<&SpecParser::ReadShape>},
    {kAxes, By<&SpecParser::ReadTensorAxes>},
    {kDType, Into<&TensorSpec::dtype, &SpecParser::ReadText>},
    {{.name = "kind",
      .description = "what it is to a trainer: `parameter`, or `buffer`, which is not trained: it "
                     "counts as no parameter, and optimizers have no state of it",
      .kind = SpecKind::kChoice,
      .words = kTensorKinds,
      .default_text = "\"parameter\""},
     Choice<&TensorSpec::kind>},
    {kInit, Initializer},
    {kShard, By<&SpecParser::ReadShard>},
    {kStage, Into<&TensorSpec::stage, &SpecParser::ReadStage>},
    {kUneven, Into<&TensorSpec::uneven, &SpecParser::ReadUneven>},
    {{.name = "key",
      .description = "the path under which values are drawn, instead of the tensor's own: keeps "
                     "them through a renaming; or, of engine `jax_threefry`, how JAX derives its "
                     "key, of `torch_cpu`, where in the stream they are",
      .kind = SpecKind::kKey},
     By<&SpecParser::ReadKey>},
    {{.name = "tie",
      .description = "the path of a tensor that is made in the same way, and has the same values",
      .kind = SpecKind::kTie},
     By<&SpecParser::ReadTie>},
    {kFans, Choice<&TensorSpec::fans>},
    {{.name = "in_axis",
      .description = "the dimensions that are inputs, instead of `fans`",
      .kind = SpecKind::kDimensions},
     Into<&TensorSpec::in_axis, &SpecParser::ReadDimensions>},
    {{.name = "out_axis",
      .description = "the dimensions that are outputs, instead of `fans`",
      .kind = SpecKind::kDimensions},
     Into<&TensorSpec::out_axis, &SpecParser::ReadDimensions>},
    {{.name = "batch_axis",
      .description = "dimensions that count in no fan: layers of a stack, experts",
      .kind = SpecKind::kDimensions},
     Into<&TensorSpec::batch_axis, &SpecParser::ReadDimensions>},
    {kWhen, Into<&TensorSpec::when, &SpecParser::ReadCondition>},
};

extern const std::vector<KeyRow<TensorSpec>> kStoredTensorKeys = {
    {{.name = "from",
      .description = "where its elements come from",
      .kind = SpecKind::kView,
      .required = true,
      .hint = "name a tensor of `modules`, as in `from: model.norm.weight`"},
     Into<&TensorSpec::from, &SpecParser::ReadView>},
    {{.name = "times",
      .description = "the factor, of f32, by which the trainer has these values: `convert` "
                     "multiplies by it, and generated values are stored as they are",
      .kind = SpecKind::kNumber,
      .default_text = "1"},
     Number<&TensorSpec::times>},
    {{.name = "back",
      .description = "the factor, of f32, that `convert` multiplies by on the way back, where it "
                     "does not divide by `times`",
      .kind = SpecKind::kNumber},
     Number<&TensorSpec::back>},
    {{.name = "plus",
      .description = "what the trainer has added to these values: `convert` adds it, and subtracts "
                     "it on the way back",
      .kind = SpecKind::kNumber,
      .default_text = "0"},
     Number<&TensorSpec::plus>},
    {kAxes, By<&SpecParser::ReadTensorAxes>},
    {kShard, By<&SpecParser::ReadShard>},
    {kStage, Into<&TensorSpec::stage, &SpecParser::ReadStage>},
    {kUneven, Into<&TensorSpec::uneven, &SpecParser::ReadUneven>},
    {kWhen, Into<&TensorSpec::when, &SpecParser::ReadCondition>},
};

extern const std::vector<KeyRow<ModuleSpec>> kModuleKeys = {
    {kRepeat, Into<&ModuleSpec::repeat, &SpecParser::ReadRepeat>},
    {kVars, By<&SpecParser::ReadModuleVariables>},
    {kDType, Into<&ModuleSpec::dtype, &SpecParser::ReadText>},
    {kInit, Initializer},
    {kFans, Choice<&ModuleSpec::fans>},
    {kStage, Into<&ModuleSpec::stage, &SpecParser::ReadStage>},
    {kWhen, Into<&ModuleSpec::when, &SpecParser::ReadCondition>},
    {{.name = "block",
      .description = "one of `blocks`, whose members the module has before its own",
      .kind = SpecKind::kBlock},
     By<&SpecParser::ReadBlockName>},
    {{.name = "args",
      .description = "the block's arguments, by name",
      .kind = SpecKind::kVariables},
     Nothing},
};

extern const std::vector<KeyRow<ModuleSpec>> kBlockKeys = {
    {{.name = "args",
      .description = "names of arguments, which expressions in the block may use",
      .kind = SpecKind::kNames},
     Nothing},
    {kRepeat, Into<&ModuleSpec::repeat, &SpecParser::ReadRepeat>},
    {kVars, By<&SpecParser::ReadModuleVariables>},
    {kDType, Into<&ModuleSpec::dtype, &SpecParser::ReadText>},
    {kInit, Initializer},
    {kFans, Choice<&ModuleSpec::fans>},
    {kStage, Into<&ModuleSpec::stage, &SpecParser::ReadStage>},
    {kWhen, Into<&ModuleSpec::when, &SpecParser::ReadCondition>},
};

extern const std::vector<KeyRow<ModuleSpec>> kStoredModuleKeys = {
    {kRepeat, Into<&ModuleSpec::repeat, &SpecParser::ReadRepeat>},
    {kStage, Into<&ModuleSpec::stage, &SpecParser::ReadStage>},
    {kWhen, Into<&ModuleSpec::when, &SpecParser::ReadCondition>},
};

extern const std::vector<KeyRow<ModuleSpec>> kLayoutKeys = {
    {kRepeat, Into<&ModuleSpec::repeat, &SpecParser::ReadRepeat>},
    {{.name = "stack",
      .description =
          "patterns of modules with numbered members, such as layers: the tensors that all members "
          "have are stored as one, with the members along its first dimension",
      .kind = SpecKind::kPatterns},
     Globs<&LayoutSpec::stack>},
    {{.name = "keep",
      .description = "patterns of tensors that are stored as they are",
      .kind = SpecKind::kPatterns},
     Globs<&LayoutSpec::keep>},
    {{.name = "omit",
      .description = "patterns of tensors that are not stored",
      .kind = SpecKind::kPatterns},
     Globs<&LayoutSpec::omit>},
    {kStage, Into<&ModuleSpec::stage, &SpecParser::ReadStage>},
    {kWhen, Into<&ModuleSpec::when, &SpecParser::ReadCondition>},
};

bool IsScalar(const SpecKey& key) {
  switch (key.kind) {
    case SpecKind::kNumber:
    case SpecKind::kChoice:
    case SpecKind::kUneven:
    case SpecKind::kDType:
    case SpecKind::kEngine:
      return true;
    default:
      return false;
  }
}

std::vector<SpecKey> KeysOf(SpecMapping mapping) {
  // In the order of SpecMapping.
  const std::vector<SpecKey> tables[] = {RowsOf(kModelKeys),        RowsOf(kSourceKeys),
                                         RowsOf(kMustHaveKeys),     RowsOf(kAssertKeys),
                                         RowsOf(kMeshKeys),         RowsOf(kTrainingKeys),
                                         RowsOf(kTensorKeys),       RowsOf(kShardKeys),
                                         RowsOf(kModuleKeys),       RowsOf(kLayoutKeys),
                                         RowsOf(kStoredTensorKeys), RowsOf(kStoredModuleKeys),
                                         RowsOf(kBlockKeys),        OperationKeys()};
  return tables[static_cast<size_t>(mapping)];
}

}  // namespace shardinit
