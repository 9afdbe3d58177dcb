// Defines a spec as the user wrote it. Syntax, keys and types are checked, and every value knows
// its position. No expression is evaluated and no name is resolved yet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/rare.h"
#include "base/source.h"
#include "base/variant.h"
#include "expr/expr.h"

namespace shardinit {

// Each error is reported once. An invalid value is absent here, or null, or has an empty name, and
// later stages do not report it again.

template <typename T>
struct Named {
  Located<std::string> name;
  T value;
};

// Keys of a mapping whose values are invalid, or for which an unknown key may be a misspelling.
class WrongKeys {
 public:
  bool Has(std::string_view key) const;
  bool empty() const { return keys_.empty(); }
  void Add(std::string_view key) { keys_.push_back(key); }  // the text must live until exit

 private:
  std::vector<std::string_view> keys_;
};

// Returns whether there may be unknown entries; `wrong` means that some entries are invalid.
template <typename T>
bool MayLack(const std::vector<Named<T>>& entries, bool wrong) {
  return wrong && (entries.empty() || std::ranges::any_of(entries, [](const auto& e) {
                     return e.name.value.empty();
                   }));
}

// A variable's value: a number, text, or a list of these. An invalid expression is null.
struct VarSpec {
  bool is_list = false;
  std::vector<ExprPtr> items;  // one if not a list
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
  Rare<FileSpec> file = {};                         // for `file`, which has no arguments
  Rare<Located<std::string>> of = {};               // for `norms`, which has no arguments
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

// A path with expressions in place of numbers: `layers.{i}.w`.
struct PathSpec {
  Located<std::string> text;
  struct Part {
    std::string text;
    ExprPtr number;  // follows the text; null: no number
  };
  std::vector<Part> parts;
};

// A requirement for a source: it must have tensors whose names match a pattern, all of one shape.
struct MustHaveSpec {
  WrongKeys wrong;
  std::optional<Located<std::string>> tensor;          // the pattern
  std::optional<Located<std::vector<ExprPtr>>> shape;  // absent: any
  ExprPtr count;                                       // number of tensors; null: at least one
};

// A folder of existing tensors.
struct SourceSpec {
  WrongKeys wrong;
  std::optional<Located<std::string>> path;    // relative to the file that names it
  std::optional<Located<std::string>> part;    // the key of the model in the folder's files
  std::optional<Located<std::string>> digest;  // the digest of all tensors, or a file with digests
  std::optional<Located<std::string>> layout;  // the layout, in the spec of the model in the folder
  std::optional<Located<std::string>> spec;    // absent: the folder's config.json
  std::optional<Located<std::string>> quantized;  // `stored` (default) or `widened`
  std::vector<MustHaveSpec> must_have;
};

// The part of a source that an initializer takes: `{source: base, tensor: …, index: […], rows: …}`.
struct FromSourceSpec {
  Located<std::string> source;
  std::optional<PathSpec> tensor = {};  // absent: the path of the initialized tensor
  std::optional<Located<std::vector<ExprPtr>>> index = {};
  ExprPtr rows = nullptr;  // null: all
  ExprPtr std = nullptr;   // for `rows_like`
};

// Initializers that fill consecutive parts of a dimension.
struct PartsSpec {
  Span span;
  std::optional<DimensionList> axis = {};  // absent: the first
  std::vector<InitSpec> of = {};
};

// How to assemble a stored tensor: from one tensor of `modules`, or by an operation such as
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

// `{torch: {position: 1024, spare: 512}}`, a place in torch_cpu's stream: the number of words drawn
// before it, and the position of a pair of normal numbers of which one is left.
struct TorchKeySpec {
  Span span;
  // Null if not given. Either `position` or `skip` is given.
  ExprPtr position, spare, skip;
};

// `{jax: {seed: 0, split: [3, 1]}}`: the steps by which JAX derives a key.
struct JaxKeySpec {
  struct Step {
    // A text or a number that Flax folds in.
    struct Static {
      PathSpec text;
      ExprPtr number;  // null: use the text
    };
    std::string name;                         // `seed`, `words`, `split` or `fold_in`
    std::vector<ExprPtr> numbers;             // as many numbers as the step takes; or
    std::optional<uint64_t> large_seed = {};  // a seed too large for expressions; or
    std::vector<Static> statics = {};         // the list of a `fold_in`
  };
  Span span;
  std::vector<Step> steps;  // the first is a seed or words
};

// Selects the random numbers of a tensor: a path to draw the tensor under, a JAX key, or a place in
// torch_cpu's stream.
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
  Rare<Located<std::vector<Located<std::string>>>> axes;
  std::optional<Located<std::string>> dtype;
  Rare<Located<std::string>> kind;       // `parameter` or kBufferKind
  std::shared_ptr<const InitSpec> init;  // null: absent
  size_t init_around = 0;  // number of block boundaries between the tensor and its `init`
  // The explicit PartitionSpec, which may be shorter than the tensor's rank.
  Rare<Located<std::vector<ShardSpec>>> shard;
  Rare<StageSpec> stage;  // overrides the module's
  Rare<UnevenSpec> uneven;
  Rare<KeySpec> key;                // replaces the tensor's own path
  Rare<Located<std::string>> tie;   // path of a tensor with the same values
  Rare<Located<std::string>> fans;  // `out_in` or `in_out`
  Rare<DimensionList> in_axis, out_axis, batch_axis;
  ExprPtr when;               // null: always present; 0: absent
  Rare<ViewSpec> from;        // in a layout, instead of a shape and an initializer
  ExprPtr times, back, plus;  // in a layout: how conversions change values; null: they do not
};

struct ModuleSpec;
using ModuleMember = std::variant<TensorSpec, std::unique_ptr<ModuleSpec>>;

struct ModuleSpec {
  Span span;
  WrongKeys wrong;
  // With `repeat: {layer: layers}`, members are below <0>, <1>, … and may use `layer`. If the
  // repeat is over a list, `layer` takes its items.
  std::optional<Named<VarSpec>> repeat;
  std::vector<Named<VarSpec>> vars;  // visible to all members, evaluated for each repeat
  // Arguments, if this module is the content of a block. Expressions in it can use only these and
  // the variables of the spec.
  std::optional<std::vector<Named<VarSpec>>> arguments;
  // The module's name, such as `layers_{layer}`, if it contains the number of the repeat. Members
  // are then directly below this name.
  std::optional<PathSpec> numbered;
  // Defaults for members. The parser copies `dtype` and `init` to the tensors.
  std::optional<Located<std::string>> dtype;
  std::shared_ptr<const InitSpec> init;
  size_t init_around = 0;  // as in TensorSpec
  std::optional<Located<std::string>> fans;
  std::optional<StageSpec> stage;
  ExprPtr when;                            // as in TensorSpec; applies to all repeats
  std::list<Named<ModuleMember>> members;  // names may contain dots; members are large
};

// A condition on the variables, such as `heads % kv_heads == 0`.
struct AssertSpec {
  WrongKeys wrong;
  ExprPtr that;                                 // false if 0
  std::optional<Located<std::string>> message;  // the error message if `that` is false
};

// A sharding rule, such as `{mlp: tensor}`. The first rule that applies wins.
struct RuleSpec {
  Located<std::string> logical;
  AxisList axes;
};

// How the tensors of `modules` are stored, as a tree of stored modules and tensors.
struct LayoutSpec {
  // Patterns: modules whose numbered members are stacked, tensors that are stored unchanged, and
  // tensors that are not stored.
  std::vector<Located<std::string>> stack, keep, omit;
  ModuleSpec modules;
  bool wrong = false;  // some part of the layout is invalid
};

// A value of `config`, with JSON's types. An expression yields a number.
struct ConfigSpec {
  using List = std::vector<ConfigSpec>;
  using Map = std::vector<Named<ConfigSpec>>;
  Variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, ExprPtr, List, Map> value;
};

// The order of devices, such as `hybrid_ring_64x4`, or a list of ids, here or in a separate file.
struct DevicesSpec {
  Span span;
  Located<std::string> order;  // empty: use `ids`
  std::vector<Located<int64_t>> ids;
};

struct NodeTree;  // spec/yaml.h

// Facts about the training run that the checkpoint is for.
struct TrainingSpec {
  WrongKeys wrong;
  std::optional<AxisList> batch, expert, computation;  // mesh axes, whatever their names
  // Null if absent.
  ExprPtr tokens, memory_per_rank, flops, optimizer_bytes, heads, kv_heads, experts_per_token;
};

struct ModelSpec {
  WrongKeys wrong;
  const Source* source = nullptr;  // the file of the spec itself, which may include others
  Located<std::string> name;
  ExprPtr seed;                                 // null: 0, or `large_seed`
  std::optional<Located<uint64_t>> large_seed;  // a seed too large for expressions
  std::optional<Located<std::string>> dtype;    // absent: every tensor has its own
  std::optional<Located<std::string>> engine;
  std::optional<UnevenSpec> uneven;              // absent: `error`
  std::optional<Located<std::string>> replicas;  // `dedupe` (default) or `full`
  std::optional<Located<std::string>> fans;      // absent: no order is assumed
  std::vector<Named<VarSpec>> vars;
  std::vector<AssertSpec> assertions;
  std::vector<Named<ExprPtr>> mesh;                 // in order: row-major, last fastest
  std::vector<Named<ExprPtr>> slices;               // by axis: number of slices along it
  std::optional<Located<std::string>> slice_order;  // `outer` (default) or `inner`
  std::optional<DevicesSpec> devices;               // absent: same order as the ranks
  std::vector<Named<ExprPtr>> bandwidth;            // by mesh axis: bytes a second
  TrainingSpec training;
  bool has_rules = false;
  std::vector<RuleSpec> rules;
  std::shared_ptr<const NodeTree> sharding;  // read by each language (graph/languages/)
  std::vector<Named<SourceSpec>> sources;
  std::vector<Named<InitSpec>> inits;
  // By initializer, then by name: a trainer's multipliers, such as `{head: {output: 1 / 8}}`.
  std::vector<Named<std::vector<Named<ExprPtr>>>> multipliers;
  std::optional<ConfigSpec::Map> config;
  std::vector<std::string> float_fields;  // fields of `config` that must be floats
  ModuleSpec modules;
  std::vector<Named<LayoutSpec>> layouts;
};

}  // namespace shardinit
