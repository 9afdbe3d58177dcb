// A spec as the user wrote it: syntax, keys and types are settled, every value knows its place; no
// expression is evaluated and no name is looked up yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/source.h"
#include "base/variant.h"
#include "expr/expr.h"

namespace shardinit {

// Mistakes are reported once: a value that is wrong is absent here, or null, or has an empty name,
// and later stages say no more about it.

template <typename T>
struct Named {
  Located<std::string> name;
  T value;
};

// The keys of a mapping that have mistakes in their values, or that an unknown key may be meant
// for.
class WrongKeys {
 public:
  bool Has(std::string_view key) const;
  bool empty() const { return keys_.empty(); }
  void Add(std::string_view key) { keys_.push_back(key); }  // the text lives as long as the program

 private:
  std::vector<std::string_view> keys_;
};

// Tells whether there may be more entries than are known; `wrong` says that they have a mistake.
template <typename T>
bool MayLack(const std::vector<Named<T>>& entries, bool wrong) {
  return wrong && (entries.empty() || std::ranges::any_of(entries, [](const auto& e) {
                     return e.name.value.empty();
                   }));
}

// A variable's value: a number, text, or a list of these. An expression is null if it is wrong.
struct VarSpec {
  bool is_list = false;
  std::vector<ExprPtr> items;  // one if it is no list
  Span span;
};
std::string TextOf(const VarSpec& var);  // as in a file: `4 * d`, `[1, 2]`

struct FileSpec {
  Located<std::string> path;    // as written: relative to the file that names it
  Located<std::string> sha256;  // 64 hexadecimal digits
};

struct FromSourceSpec;
struct PartsSpec;

// An initializer: `base`, `ones` (no arguments), `{normal: {mean: 0, std: 0.02}}`, `{expr: "…"}`,
// `{file: …}`, `{norms: {of: …}}`, `{source: …}`, `{rows_like: …}` or `{parts: …}`.
struct InitSpec {
  Located<std::string> name;
  ExprPtr expr;                                     // for `expr`, which has no arguments
  std::vector<Named<ExprPtr>> arguments;            // in the order they are written
  std::optional<FileSpec> file = {};                // for `file`, which has no arguments
  std::optional<Located<std::string>> of = {};      // for `norms`, which has no arguments
  std::shared_ptr<const FromSourceSpec> from = {};  // for `source` and `rows_like`
  std::shared_ptr<const PartsSpec> parts = {};
};

// Mesh axes that shard one dimension, major first; empty: not sharded (`null`).
using AxisList = Located<std::vector<Located<std::string>>>;

struct ShardSpec {
  AxisList axes;
  ExprPtr segments = nullptr;  // null: 1
  WrongKeys wrong = {};
};

// The way to handle uneven dimensions: `error`, `chunk`, `pad` or `{pad: 0.5}`.
struct UnevenSpec : Located<std::string> {
  ExprPtr padding = nullptr;  // null: 0
};

// A stage, such as `{pipe: [0, 3]}`: the only indices on mesh axes at which a tensor is held.
using StageSpec = Located<std::vector<Named<std::vector<ExprPtr>>>>;

// A dimension of a tensor is given by the name of its logical axis, or by its position, which
// counts from the end if it is negative.
using DimensionRef = Located<Variant<std::string, int64_t>>;
using DimensionList = Located<std::vector<DimensionRef>>;

// A path in which expressions stand for numbers: `layers.{i}.w`.
struct PathSpec {
  Located<std::string> text;
  struct Part {
    std::string text;
    ExprPtr number;  // follows the text; null: none
  };
  std::vector<Part> parts;
};

// A source must have these: tensors whose names match a pattern, all of one shape.
struct MustHaveSpec {
  WrongKeys wrong;
  std::optional<Located<std::string>> tensor;          // the pattern
  std::optional<Located<std::vector<ExprPtr>>> shape;  // absent: any
  ExprPtr count;                                       // how many there are; null: at least one
};

// A folder of tensors that exist.
struct SourceSpec {
  WrongKeys wrong;
  std::optional<Located<std::string>> path;    // relative to the file that has it
  std::optional<Located<std::string>> part;    // of the folder: the key of the model in its files
  std::optional<Located<std::string>> digest;  // of all tensors, or a file with digests
  std::optional<Located<std::string>> layout;  // of the spec of the model in the folder
  std::optional<Located<std::string>> spec;    // absent: the folder's config.json
  std::vector<MustHaveSpec> must_have;
};

// An initializer takes this of a source: `{source: base, tensor: …, index: […], rows: …}`.
struct FromSourceSpec {
  Located<std::string> source;
  std::optional<PathSpec> tensor = {};  // absent: the path of the tensor that is made
  std::optional<Located<std::vector<ExprPtr>>> index = {};
  ExprPtr rows = nullptr;  // null: all
  ExprPtr std = nullptr;   // of `rows_like`
};

// Initializers that fill a dimension one behind the other.
struct PartsSpec {
  Span span;
  std::optional<DimensionList> axis = {};  // absent: the first
  std::vector<InitSpec> of = {};
};

// The source of a stored tensor's elements: a tensor of `modules`, or an operation such as
// `{stack: {axis: 0, for: {i: layers}, of: …}}`.
struct ViewSpec {
  struct Argument {
    Located<std::string> name;
    bool is_list;
    std::vector<ExprPtr> values;
  };
  Span span;
  std::optional<PathSpec> path;  // or an operation:
  Located<std::string> operation;
  std::vector<Argument> arguments;     // without `for` and `of`
  std::optional<Named<ExprPtr>> loop;  // `for`
  bool is_list = false;                // whether `of` is a list
  std::vector<ViewSpec> of;
};

// `{torch: {position: 1024, spare: 512}}` is a place in the stream of torch_cpu: the number of
// words that are drawn before, and the position of a pair of normal numbers of which one is left.
struct TorchKeySpec {
  Span span;
  // An expression is null if it is not given. Either `position` or `skip` is given.
  ExprPtr position, spare, skip;
};

// `{jax: {seed: 0, split: [3, 1]}}` is how JAX derives a key, step by step.
struct JaxKeySpec {
  struct Step {
    // A text or number that Flax folds in.
    struct Static {
      PathSpec text;
      ExprPtr number;  // null: the text counts
    };
    std::string name;                         // `seed`, `words`, `split` or `fold_in`
    std::vector<ExprPtr> numbers;             // as many as the step takes; or
    std::optional<uint64_t> large_seed = {};  // a seed that expressions do not have; or
    std::vector<Static> statics = {};         // the list of a `fold_in`
  };
  Span span;
  std::vector<Step> steps;  // begin with a seed or words
};

// A key decides which numbers a tensor takes: it is a path under which the tensor is drawn, a key
// of JAX, or a place in the stream of torch_cpu.
using KeySpec = std::variant<Located<std::string>, JaxKeySpec, TorchKeySpec>;

inline Span SpanOf(const KeySpec& key) {
  return std::visit([](const auto& each) { return each.span; }, key);
}

struct TensorSpec {
  Span span;  // span of the tensor's key
  WrongKeys wrong;
  std::vector<ExprPtr> shape;
  Span shape_span;
  // Names of logical axes, one per dimension; an empty name is `null`.
  std::optional<Located<std::vector<Located<std::string>>>> axes;
  std::optional<Located<std::string>> dtype;
  std::optional<Located<std::string>> kind;  // `parameter` or kBufferKind
  std::shared_ptr<const InitSpec> init;      // null: absent
  size_t init_around = 0;  // how many blocks' borders lie between the tensor and its `init`
  // The explicit PartitionSpec, which may be shorter than the rank.
  std::optional<Located<std::vector<ShardSpec>>> shard;
  std::optional<StageSpec> stage;  // instead of the module's
  std::optional<UnevenSpec> uneven;
  std::optional<KeySpec> key;                // instead of the tensor's own path
  std::optional<Located<std::string>> tie;   // path of a tensor with the same values
  std::optional<Located<std::string>> fans;  // `out_in` or `in_out`
  std::optional<DimensionList> in_axis, out_axis, batch_axis;
  ExprPtr when;                  // null: always there; 0: no such tensor
  std::optional<ViewSpec> from;  // in a layout, instead of a shape and an initializer
  ExprPtr times, back, plus;     // then, what a conversion does to values; null: nothing
};

struct ModuleSpec;
using ModuleMember = std::variant<TensorSpec, std::unique_ptr<ModuleSpec>>;

struct ModuleSpec {
  Span span;
  WrongKeys wrong;
  // With `repeat: {layer: layers}` members stand under <0>, <1>, … and may use `layer`.
  // A repeat over a list gives `layer` its items.
  std::optional<Named<VarSpec>> repeat;
  std::vector<Named<VarSpec>> vars;  // for all below, once for each repeat
  // This is what a block has, with its arguments: only these and the variables of the spec are
  // known in it.
  std::optional<std::vector<Named<VarSpec>>> arguments;
  // The name, such as `layers_{layer}`, if it holds the number of the repeat: members stand
  // directly under it.
  std::optional<PathSpec> numbered;
  // These are for members without their own. The parser gives `dtype` and `init` to the tensors.
  std::optional<Located<std::string>> dtype;
  std::shared_ptr<const InitSpec> init;
  size_t init_around = 0;  // as a tensor's
  std::optional<Located<std::string>> fans;
  std::optional<StageSpec> stage;
  ExprPtr when;                              // null or 0 as in TensorSpec; covers all repeats
  std::vector<Named<ModuleMember>> members;  // names may hold dots
};

// Something that must hold of the variables, such as `heads % kv_heads == 0`.
struct AssertSpec {
  WrongKeys wrong;
  ExprPtr that;                                 // holds unless it is 0
  std::optional<Located<std::string>> message;  // what is wrong if it does not
};

// A rule, such as `{mlp: tensor}`; the first rule that applies wins.
struct RuleSpec {
  Located<std::string> logical;
  AxisList axes;
};

// How the tensors of `modules` are stored, as a tree of stored modules and tensors.
struct LayoutSpec {
  // These are patterns: of modules whose numbered members are stacked, of tensors that are stored
  // as they are, and of tensors that are not stored.
  std::vector<Located<std::string>> stack, keep, omit;
  ModuleSpec modules;
  bool wrong = false;  // something in the layout is wrong
};

// A value of `config`, with the types of JSON; an expression gives a number.
struct ConfigSpec {
  using List = std::vector<ConfigSpec>;
  using Map = std::vector<Named<ConfigSpec>>;
  Variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, ExprPtr, List, Map> value;
};

// The order of devices, such as `hybrid_ring_64x4`, or a list of ids, here or in a file of its own.
struct DevicesSpec {
  Span span;
  Located<std::string> order;  // empty: `ids` counts
  std::vector<Located<int64_t>> ids;
};

struct NodeTree;  // spec/yaml.h

// Facts about the training that the checkpoint is for.
struct TrainingSpec {
  WrongKeys wrong;
  std::optional<AxisList> batch, expert, computation;  // mesh axes, whatever their names
  // An expression is null if the spec does not give it.
  ExprPtr tokens, memory_per_rank, flops, optimizer_bytes, heads, kv_heads, experts_per_token;
};

struct ModelSpec {
  WrongKeys wrong;
  const Source* source = nullptr;  // the file of the spec itself, which may include others
  Located<std::string> name;
  ExprPtr seed;                                 // null: 0, or large_seed
  std::optional<Located<uint64_t>> large_seed;  // a seed that expressions do not have
  std::optional<Located<std::string>> dtype;    // absent: every tensor has its own
  std::optional<Located<std::string>> engine;
  std::optional<UnevenSpec> uneven;              // absent: `error`
  std::optional<Located<std::string>> replicas;  // `dedupe` (default) or `full`
  std::optional<Located<std::string>> fans;      // absent: no order is assumed
  std::vector<Named<VarSpec>> vars;
  std::vector<AssertSpec> assertions;
  std::vector<Named<ExprPtr>> mesh;    // in order: row-major, last fastest
  std::vector<Named<ExprPtr>> slices;  // by axis: how many parts lie on different slices
  std::optional<Located<std::string>> slice_order;  // `outer` (default) or `inner`
  std::optional<DevicesSpec> devices;               // absent: same order as the ranks
  std::vector<Named<ExprPtr>> bandwidth;            // by mesh axis: bytes a second
  TrainingSpec training;
  bool has_rules = false;
  std::vector<RuleSpec> rules;
  std::shared_ptr<const NodeTree> sharding;  // read by each language (graph/languages/)
  std::vector<Named<SourceSpec>> sources;
  std::vector<Named<InitSpec>> inits;
  // By initializer: by what a trainer multiplies, such as `{head: {output: 1 / 8}}`.
  std::vector<Named<std::vector<Named<ExprPtr>>>> multipliers;
  std::optional<ConfigSpec::Map> config;
  std::vector<std::string> float_fields;  // fields of `config` that must be floats
  ModuleSpec modules;
  std::vector<Named<LayoutSpec>> layouts;
};

}  // namespace shardinit
