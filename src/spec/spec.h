// A spec as the user wrote it: syntax, keys and types are settled, every value
// knows its place; no expression is evaluated and no name is looked up yet.
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
#include "expr/expr.h"

namespace shardinit {

// Mistakes are reported once: what was wrong is absent here, or null, or has an empty name, and
// whoever meets it says no more about it.

template <typename T>
struct Named {
  Located<std::string> name;
  T value;
};

// Keys of a mapping within which something is wrong, or that an unknown key may be meant for.
class WrongKeys {
 public:
  bool Has(std::string_view key) const;
  bool empty() const { return keys_.empty(); }
  void Add(std::string_view key) {
    keys_.push_back(key);
  }  // The text lives as long as the program.

 private:
  std::vector<std::string_view> keys_;
};

// Whether there may be more entries than those that are known. `wrong`: something in them is.
template <typename T>
bool MayLack(const std::vector<Named<T>>& entries, bool wrong) {
  return wrong &&
         (entries.empty() || std::any_of(entries.begin(), entries.end(),
                                         [](const auto& e) { return e.name.value.empty(); }));
}

// A file with the elements of a tensor.
struct FileSpec {
  Located<std::string> path;    // As it was written: relative to the file that has it.
  Located<std::string> sha256;  // 64 hexadecimal digits.
};

// `base`, `ones` (no arguments), `{normal: {mean: 0, std: 0.02}}`,
// `{expr: "…"}`, `{file: …}` or `{norms: {of: …}}`.
struct InitSpec {
  Located<std::string> name;
  ExprPtr expr;                                 // Of `expr`, which has no arguments.
  std::vector<Named<ExprPtr>> arguments;        // In the order they were written.
  std::optional<FileSpec> file = {};            // Of `file`, which has no arguments.
  std::optional<Located<std::string>> of = {};  // Of `norms`, which has no others.
};

// Mesh axes that cut one dimension, first is major; empty: not cut (`null`).
using AxisList = Located<std::vector<Located<std::string>>>;

// How `shard` cuts a dimension.
struct CutSpec {
  AxisList axes;
  ExprPtr segments = nullptr;  // Null: 1.
  WrongKeys wrong = {};
};

// `error`, `chunk`, `pad` or `{pad: 0.5}`.
struct UnevenSpec : Located<std::string> {
  ExprPtr padding = nullptr;  // Null: 0.
};

// `{pipe: [0, 3]}`: the only indices on mesh axes at which a tensor is held.
using StageSpec = Located<std::vector<Named<std::vector<ExprPtr>>>>;

// A dimension of a tensor: the name of its logical axis, or its position,
// counted from the end where that is negative.
using DimensionRef = Located<std::variant<std::string, int64_t>>;
using DimensionList = Located<std::vector<DimensionRef>>;

// A path in which expressions stand for numbers: `layers.{i}.w`.
struct PathSpec {
  Located<std::string> text;
  struct Part {
    std::string text;
    ExprPtr number;  // Behind the text; null: none.
  };
  std::vector<Part> parts;
};

// Where a stored tensor's elements come from: a tensor of `modules`, or
// `{stack: {axis: 0, for: {i: layers}, of: …}}`.
struct ViewSpec {
  struct Argument {
    Located<std::string> name;
    bool is_list;
    std::vector<ExprPtr> values;
  };
  Span span;
  std::optional<PathSpec> path;  // Or:
  Located<std::string> operation;
  std::vector<Argument> arguments;     // Without the following two.
  std::optional<Named<ExprPtr>> loop;  // `for`.
  bool is_list = false;                // `of` is one.
  std::vector<ViewSpec> of;
};

// `{torch: {position: 1024, spare: 512}}`: words of torch_cpu that are drawn before, and where a
// second number is left.
struct TorchKeySpec {
  Span span;
  // Null: not given. One of `position` and `skip` is.
  ExprPtr position, spare, skip;
};

// `{jax: {seed: 0, split: [3, 1]}}`: how JAX derives a key, step by step.
struct JaxKeySpec {
  struct Step {
    // What Flax folds in: a text or a number.
    struct Static {
      PathSpec text;
      ExprPtr number;  // Null: the text.
    };
    std::string name;                         // `seed`, `words`, `split` or `fold_in`.
    std::vector<ExprPtr> numbers;             // As many as the step has; of `seed`, or
    std::optional<uint64_t> large_seed = {};  // one that expressions do not have; of `fold_in`, or
    std::vector<Static> statics = {};         // a list.
  };
  Span span;
  std::vector<Step> steps;  // The first is a seed or words.
};

struct TensorSpec {
  Span span;  // Of the tensor's key.
  WrongKeys wrong;
  std::vector<ExprPtr> shape;
  Span shape_span;
  // Logical axis names, one per dimension; an empty name is `null`.
  std::optional<Located<std::vector<Located<std::string>>>> axes;
  std::optional<Located<std::string>> dtype;
  std::optional<Located<std::string>> kind;  // `parameter`, or kBufferKind.
  std::optional<InitSpec> init;
  // The explicit PartitionSpec; may be shorter than the rank.
  std::optional<Located<std::vector<CutSpec>>> shard;
  std::optional<StageSpec> stage;  // Instead of the module's.
  std::optional<UnevenSpec> uneven;
  std::optional<Located<std::string>> key;   // Drawn under this path instead, or
  std::optional<JaxKeySpec> jax_key;         // with this key,
  std::optional<TorchKeySpec> torch_key;     // from this place on.
  std::optional<Located<std::string>> tie;   // The path of a tensor whose values it has.
  std::optional<Located<std::string>> fans;  // `out_in` or `in_out`.
  std::optional<DimensionList> in_axis, out_axis, batch_axis;
  ExprPtr when;                  // Null: always there. Where it is 0, there is no such tensor.
  std::optional<ViewSpec> from;  // In a layout, instead of a shape and an initializer.
};

struct ModuleSpec;
using ModuleMember = std::variant<TensorSpec, std::unique_ptr<ModuleSpec>>;

struct ModuleSpec {
  Span span;
  WrongKeys wrong;
  // `repeat: {layer: layers}`: members stand under <0>, <1>, … and may use
  // `layer`.
  std::optional<Named<ExprPtr>> repeat;
  // Of `layers_{layer}`, which stands for the number itself: members stand under it alone.
  std::optional<PathSpec> numbered;
  std::optional<Located<std::string>> fans;  // Of members that say nothing.
  std::optional<StageSpec> stage;            // The same.
  ExprPtr when;                              // As a tensor's, for the module with all its repeats.
  std::vector<Named<ModuleMember>> members;  // Names may hold dots.
};

// `{mlp: tensor}`; the first rule that applies wins.
struct RuleSpec {
  Located<std::string> logical;
  AxisList axes;
};

// How the tensors of `modules` are stored, in a tree like theirs.
struct LayoutSpec {
  // Patterns of modules whose numbered members are stacked; of those that are stored as they are,
  // and of those that are not.
  std::vector<Located<std::string>> stack, keep, omit;
  ModuleSpec modules;
  bool wrong = false;  // Something in it is.
};

// A value of `config`, as JSON has them; an expression gives a number.
struct ConfigSpec {
  using List = std::vector<ConfigSpec>;
  using Map = std::vector<Named<ConfigSpec>>;
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, ExprPtr, List, Map>
      value;
};

// `hybrid_ring_64x4`, or a list of ids, here or in a file of its own.
struct DevicesSpec {
  Span span;
  Located<std::string> order;  // Empty: a list.
  std::vector<Located<int64_t>> ids;
};

struct NodeTree;  // spec/yaml.h

// What is known of the training that the checkpoint is for.
struct TrainingSpec {
  WrongKeys wrong;
  std::optional<AxisList> batch, expert, computation;  // Mesh axes, whatever their names say.
  // Null: not said.
  ExprPtr tokens, memory_per_rank, flops, optimizer_bytes, heads, kv_heads, experts_per_token;
};

struct ModelSpec {
  WrongKeys wrong;
  Located<std::string> name;
  ExprPtr seed;                                 // Null: 0, or
  std::optional<Located<uint64_t>> large_seed;  // one that expressions do not have.
  std::optional<Located<std::string>> dtype;    // Absent: every tensor says its own.
  std::optional<Located<std::string>> engine;
  std::optional<UnevenSpec> uneven;              // Null: `error`.
  std::optional<Located<std::string>> replicas;  // `dedupe` (default) or `full`.
  std::optional<Located<std::string>> fans;      // Absent: no order is assumed.
  std::vector<Named<ExprPtr>> vars;
  std::vector<Named<ExprPtr>> mesh;    // Axes in order: row-major, last fastest.
  std::vector<Named<ExprPtr>> slices;  // Of axes, how many parts lie on different slices.
  std::optional<Located<std::string>> slice_order;  // `outer` (default) or `inner`.
  std::optional<DevicesSpec> devices;               // Absent: as ranks.
  std::vector<Named<ExprPtr>> bandwidth;            // Of mesh axes, in bytes a second.
  TrainingSpec training;
  bool has_rules = false;
  std::vector<RuleSpec> rules;
  std::shared_ptr<const NodeTree> sharding;  // Each language reads its own (graph/languages/).
  std::vector<Named<InitSpec>> inits;
  std::optional<ConfigSpec::Map> config;
  ModuleSpec modules;
  std::vector<Named<LayoutSpec>> layouts;
};

}  // namespace shardinit
