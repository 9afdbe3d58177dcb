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
constexpr std::string_view kQuantizedForms[] = {"stored", "widened"};

// Keys that several mappings have.
constexpr SpecKey kUneven = {
    .name = "uneven",
    .description =
        "how to shard a dimension that its mesh axes do not divide: `error`; `chunk`: every shard "
        "has ceil(size / count) rows, and the last ones fewer or none; or `pad`: it is stored "
        "longer, filled with zeros or with the number of `{pad: NUMBER}`; a tensor's replaces the "
        "spec's",
    .kind = SpecKind::kUneven};
constexpr SpecKey kVars = {.name = "vars",
                           .description =
                               "names for numbers, texts and lists, for use in expressions in the "
                               "module; in any order; in a repeat they may use its variable",
                           .kind = SpecKind::kVariables};
constexpr SpecKey kDType = {.name = "dtype",
                            .description =
                                "the element type; the tensor's overrides the module's, and the "
                                "module's overrides the spec's",
                            .kind = SpecKind::kDType};
constexpr SpecKey kInit = {
    .name = "init",
    .description = "how elements are generated; the tensor's overrides the module's",
    .kind = SpecKind::kInit};
constexpr SpecKey kFans = {
    .name = "fans",
    .description =
        "which dimensions fan_in and fan_out are counted over: `out_in`, [out, in, ...], as in "
        "PyTorch; `in_out`, [..., in, out], as in JAX and Keras; the tensor's overrides the "
        "module's, and that before the spec's",
    .kind = SpecKind::kChoice,
    .words = kFanOrders};
constexpr SpecKey kWhen = {
    .name = "when",
    .description = "the tensor or module is left out where this is 0; such as `layer < 3`",
    .kind = SpecKind::kCondition};
constexpr SpecKey kRepeat = {
    .name = "repeat",
    .description =
        "the variable and a count, or the variable and a list of its values: members are named "
        "<name>.0, <name>.1, … and may use the variable",
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
        "the tensor or the module's tensors; instead of the enclosing module's stage",
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
      .description = "the element type of every tensor without its own",
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
      .description = "conditions on the variables, such as `heads % kv_heads == 0`, in addition to "
                     "those of included files; null: without those of included files",
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
      .description =
          "factors that a trainer applies to the tensors of each initializer of `init`: numbers "
          "that `explain` shows and that change no value; null: without those of an included file",
      .kind = SpecKind::kMultipliers,
      .hint = "write it as in `{head: {output: 1 / 8}}`"},
     By<&SpecParser::ReadMultipliers>},
    {WithDefault(kUneven, "\"error\""), Into<&ModelSpec::uneven, &SpecParser::ReadUneven>},
    {{.name = "replicas",
      .description = "where to store a shard that several ranks hold: `dedupe`, in the file of the "
                     "lowest rank; `full`, in the file of each rank",
      .kind = SpecKind::kChoice,
      .words = kReplicaPolicies,
      .default_text = "\"dedupe\""},
     Choice<&ModelSpec::replicas>},
    {kFans, Choice<&ModelSpec::fans>},
    {{.name = "config",
      .description = "what `export --to safetensors` writes to config.json; text that begins with "
                     "`=` is an expression over `vars`; null: without that of an included file",
      .kind = SpecKind::kConfig,
      .hint = "write it as in `{model_type: llama}`"},
     By<&SpecParser::ReadConfig>},
    {{.name = "config_json",
      .description = "in the file of a family: how a config.json of Hugging Face becomes a spec "
                     "that includes it",
      .kind = SpecKind::kConfigJson},
     By<&SpecParser::ReadFamily>},
    {{.name = "include",
      .description = "files to start from, relative to this one, or names of shipped files below "
                     "`<shardinit>/`; this file's keys replace theirs",
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
                     "one or all: without those of an included file",
      .kind = SpecKind::kLayouts,
      .hint = "list layouts by name"},
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
      .description = "the error message if it does not hold",
      .kind = SpecKind::kText},
     Into<&AssertSpec::message, &SpecParser::ReadText>},
    {{.name = "of",
      .description = "a variable of the model; without it nothing is checked",
      .kind = SpecKind::kText},
     Nothing},
};

extern const std::vector<KeyRow<SourceSpec>> kSourceKeys = {
    {{.name = "path",
      .description = "the folder, relative to this file; `--source NAME=DIR` overrides it",
      .kind = SpecKind::kText},
     Into<&SourceSpec::path, &SpecParser::ReadText>},
    {{.name = "part",
      .description = "which part of the folder's files is the model, as for `--part-of-file`; "
                     "names are then relative to it",
      .kind = SpecKind::kText},
     Into<&SourceSpec::part, &SpecParser::ReadText>},
    {{.name = "digest",
      .description = "the expected contents of the folder: the digest that `shardinit digest` "
                     "prints as `(model)`, or a file that its `--write` made, of which only the "
                     "tensors in use are checked; without it, any source is accepted",
      .kind = SpecKind::kText},
     Into<&SourceSpec::digest, &SpecParser::ReadText>},
    {{.name = "layout",
      .description = "the folder's layout, one of the layouts of `spec`; names are then those of "
                     "`spec`; with `hub`, if `spec` has no such layout, the names are unchanged",
      .kind = SpecKind::kText},
     Into<&SourceSpec::layout, &SpecParser::ReadText>},
    {{.name = "spec",
      .description = "the spec of the model in the folder, for `layout`: a file, relative to this "
                     "one, or a name; default: the folder's config.json",
      .kind = SpecKind::kText},
     Into<&SourceSpec::spec, &SpecParser::ReadText>},
    {{.name = "quantized",
      .description =
          "what a quantized model's tensors are: `stored`, the numbers and scales in the "
          "files; `widened`, the f32 tensors that they represent",
      .kind = SpecKind::kChoice,
      .words = kQuantizedForms,
      .default_text = "\"stored\""},
     Choice<&SourceSpec::quantized>},
    {{.name = "must_have",
      .description = "tensors that the folder must have; another shape or number is an error",
      .kind = SpecKind::kMustHave,
      .hint = "write it as in `[{tensor: \"layers.*.up.weight\", shape: [ff, d], count: layers}]`"},
     By<&SpecParser::ReadMustHave>},
};

extern const std::vector<KeyRow<MustHaveSpec>> kMustHaveKeys = {
    {{.name = "tensor",
      .description = "a pattern of names: `*` matches a part of a name or a piece of it, `**` any "
                     "number of parts",
      .kind = SpecKind::kText,
      .required = true,
      .hint = "write it as in `{tensor: \"layers.*.up.weight\", shape: [ff, d]}`"},
     Into<&MustHaveSpec::tensor, &SpecParser::ReadText>},
    {{.name = "shape",
      .description = "the shape of each of them; default: any",
      .kind = SpecKind::kShape,
      .hint = "list its dimensions, as in `[ff, d]`"},
     By<&SpecParser::ReadMustHaveShape>},
    {{.name = "count",
      .description = "how many there are; default: at least one",
      .kind = SpecKind::kNumber},
     Number<&MustHaveSpec::count>},
};

extern const std::vector<KeyRow<ModelSpec>> kMeshKeys = {
    {{.name = "axes",
      .description = "the axes and their sizes; ranks are row-major, the last axis varies fastest; "
                     "written as a list of single axes, they replace those of an included file",
      .kind = SpecKind::kAxes,
      .required = true,
      .hint = "write `mesh: {axes: {data: 8}}`"},
     OfMeshAxes<&ModelSpec::mesh>},
    {{.name = "slices",
      .description = "for each axis, how many parts are on different slices (DCN); the rest is "
                     "within one slice (ICI)",
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
      .description = "which device is at each place: an order, a list of ids in row-major order of "
                     "coordinates, or a file with such a list, whose name has a `.` or a `/`",
      .kind = SpecKind::kDevices,
      .default_text = "\"row_major\""},
     By<&SpecParser::ReadDevices>},
};

extern const std::vector<KeyRow<TrainingSpec>> kTrainingKeys = {
    {{.name = "tokens",
      .description = "how many tokens of a step all ranks at one place on the batch axes process "
                     "together, also as `4M` (of 1000) or `4Mi` (of 1024)",
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
                     "moments in f32, and a copy in f32 of weights in a smaller type",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::optimizer_bytes>},
    {{.name = "heads",
      .description = "the number of attention heads, if `config` does not have it",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::heads>},
    {{.name = "kv_heads",
      .description = "the number of heads of keys and values, if it is different",
      .kind = SpecKind::kNumber},
     Number<&TrainingSpec::kv_heads>},
    {{.name = "experts_per_token",
      .description = "how many experts process each token, if `config` does not have it",
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
      .description = "how many segments, one after the other, the dimension has, such as 2 for "
                     "gate and up; a rank has a part of each",
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
      .description = "its role in training: `parameter`, or `buffer`, which is not trained: it "
                     "does not count as a parameter, and optimizers have no state for it",
      .kind = SpecKind::kChoice,
      .words = kTensorKinds,
      .default_text = "\"parameter\""},
     Choice<&TensorSpec::kind>},
    {kInit, Initializer},
    {kShard, By<&SpecParser::ReadShard>},
    {kStage, Into<&TensorSpec::stage, &SpecParser::ReadStage>},
    {kUneven, Into<&TensorSpec::uneven, &SpecParser::ReadUneven>},
    {{.name = "key",
      .description = "the path that determines the values, instead of the tensor's own: keeps them "
                     "when a tensor is renamed; with engine `jax_threefry`, how JAX derives the "
                     "key; with `torch_cpu`, the position in the stream",
      .kind = SpecKind::kKey},
     By<&SpecParser::ReadKey>},
    {{.name = "tie",
      .description = "the path of a tensor with the same initializer and values",
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
      .description = "dimensions that do not count in any fan: layers of a stack, experts",
      .kind = SpecKind::kDimensions},
     Into<&TensorSpec::batch_axis, &SpecParser::ReadDimensions>},
    {kWhen, Into<&TensorSpec::when, &SpecParser::ReadCondition>},
};

extern const std::vector<KeyRow<TensorSpec>> kStoredTensorKeys = {
    {{.name = "from",
      .description = "the source of its elements",
      .kind = SpecKind::kView,
      .required = true,
      .hint = "name a tensor of `modules`, as in `from: model.norm.weight`"},
     Into<&TensorSpec::from, &SpecParser::ReadView>},
    {{.name = "times",
      .description = "the factor, in f32, by which the trainer scales these values: `convert` "
                     "multiplies by it; generated values are stored unchanged",
      .kind = SpecKind::kNumber,
      .default_text = "1"},
     Number<&TensorSpec::times>},
    {{.name = "back",
      .description = "the factor, in f32, by which `convert` multiplies on the way back, instead "
                     "of dividing by `times`",
      .kind = SpecKind::kNumber},
     Number<&TensorSpec::back>},
    {{.name = "plus",
      .description = "the number that the trainer adds to these values: `convert` adds it, and "
                     "subtracts it on the way back",
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
      .description = "one of `blocks`; its members come before the module's own",
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
          "patterns of modules with numbered members, such as layers: corresponding tensors of all "
          "members are stored as one, with the members along its first dimension",
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
