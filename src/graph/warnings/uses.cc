#include "graph/warnings/uses.h"

#include <cctype>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/overloaded.h"
#include "expr/expr.h"
#include "spec/yaml.h"

namespace shardinit {
namespace {

class UseCollector {
 public:
  NameUses Run(const ModelSpec& spec) {
    Add(spec.seed);
    if (spec.uneven) Add(spec.uneven->padding);
    Add(spec.vars);
    for (const auto* list : {&spec.mesh, &spec.slices, &spec.bandwidth}) Add(*list);
    for (const AssertSpec& assertion : spec.assertions) Add(assertion.that);
    const TrainingSpec& t = spec.training;
    for (const ExprPtr& expr : {t.tokens, t.memory_per_rank, t.flops, t.optimizer_bytes, t.heads,
                                t.kv_heads, t.experts_per_token}) {
      Add(expr);
    }
    for (const RuleSpec& rule : spec.rules) uses_.of_sharding.insert(rule.logical.value);
    if (spec.sharding) AddSharding(*spec.sharding->root);
    for (const auto& init : spec.inits) Add(init.value);
    for (const auto& source : spec.sources) {
      for (const MustHaveSpec& wanted : source.value.must_have) {
        if (wanted.shape) Add(wanted.shape->value);
        Add(wanted.count);
      }
    }
    Add(spec.multipliers);
    if (spec.config) Add(ConfigSpec{*spec.config});
    Add(spec.modules);
    for (const auto& layout : spec.layouts) Add(layout.value.modules);
    return std::move(uses_);
  }

 private:
  void Add(const ExprPtr& expr) {
    if (expr == nullptr) return;
    for (std::string& name : NamesIn(*expr)) uses_.variables.insert(std::move(name));
  }

  template <typename T>
  void Add(const std::vector<T>& list) {
    for (const T& each : list) Add(each);
  }
  template <typename T>
  void Add(const Named<T>& named) {
    Add(named.value);
  }
  template <typename T>
  void Add(const Rare<T>& value) {
    if (value) Add(*value);
  }
  template <typename T>
  void Add(const std::optional<T>& value) {
    if (value) Add(*value);
  }

  void Add(const VarSpec& var) { Add(var.items); }

  void Add(const std::shared_ptr<const InitSpec>& init) {
    if (init != nullptr) Add(*init);
  }

  void Add(const InitSpec& init) {
    uses_.initializers.insert(init.name.value);
    Add(init.expr);
    Add(init.arguments);
    if (init.from != nullptr) {
      Add(init.from->tensor);
      if (init.from->index) Add(init.from->index->value);
      Add(init.from->rows);
      Add(init.from->std);
    }
    if (init.parts != nullptr) {
      for (const InitSpec& each : init.parts->of) Add(each);
    }
  }

  void Add(const PathSpec& path) {
    for (const PathSpec::Part& part : path.parts) Add(part.number);
  }

  void Add(const StageSpec& stage) { Add(stage.value); }

  void Add(const ViewSpec& view) {
    Add(view.path);
    for (const ViewSpec::Argument& argument : view.arguments) Add(argument.values);
    Add(view.loop);
    Add(view.of);
  }

  void Add(const KeySpec& key) {
    std::visit(Overloaded{[](const Located<std::string>&) {},
                          [&](const TorchKeySpec& place) {
                            for (const ExprPtr& expr : {place.position, place.spare, place.skip}) {
                              Add(expr);
                            }
                          },
                          [&](const JaxKeySpec& steps) {
                            for (const JaxKeySpec::Step& step : steps.steps) {
                              Add(step.numbers);
                              for (const auto& folded : step.statics) {
                                Add(folded.text);
                                Add(folded.number);
                              }
                            }
                          }},
               key);
  }

  void Add(const ConfigSpec& config) {
    std::visit(Overloaded{[&](const ConfigSpec::Map& map) { Add(map); },
                          [&](const ConfigSpec::List& list) { Add(list); },
                          [&](const ExprPtr& expr) { Add(expr); }, [](const auto&) {}},
               config.value);
  }

  void Add(const DimensionList& dimensions) {
    for (const DimensionRef& dimension : dimensions.value) {
      if (const auto* name = std::get_if<std::string>(&dimension.value)) {
        uses_.of_dimensions.insert(*name);
      }
    }
  }

  void Add(const TensorSpec& tensor) {
    Add(tensor.shape);
    Add(tensor.init);
    if (tensor.shard) {
      for (const ShardSpec& by : tensor.shard->value) Add(by.segments);
    }
    Add(tensor.stage);
    if (tensor.uneven) Add(tensor.uneven->padding);
    Add(tensor.key);
    for (const auto* list : {&tensor.in_axis, &tensor.out_axis, &tensor.batch_axis}) Add(*list);
    Add(tensor.when);
    Add(tensor.from);
    if (!tensor.axes) return;
    for (const auto& [name, span] : tensor.axes->value) {
      if (!name.empty()) uses_.axes[name].push_back(span);
    }
  }

  void Add(const ModuleSpec& module) {
    Add(module.repeat);
    Add(module.vars);
    Add(module.arguments);
    Add(module.numbered);
    Add(module.stage);
    Add(module.when);
    for (const auto& member : module.members) {
      if (const auto* tensor = std::get_if<TensorSpec>(&member.value)) {
        Add(*tensor);
      } else {
        Add(*std::get<std::unique_ptr<ModuleSpec>>(member.value));
      }
    }
  }

  // Each language reads its own part of the tree, so every word in it may be a name.
  void AddSharding(const Node& node) {
    for (const Node::Entry& entry : node.entries) {
      if (entry.key != nullptr) AddWords(entry.key->text, {&uses_.of_sharding});
      AddSharding(*entry.value);
    }
    if (node.IsScalar()) AddWords(node.text, {&uses_.of_sharding, &uses_.variables});
  }

  static void AddWords(std::string_view text, std::initializer_list<std::set<std::string>*> sets) {
    const auto is_part = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    };
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      for (end = begin; end < text.size() && is_part(text[end]); ++end) continue;
      for (auto* set : sets) set->emplace(text.substr(begin, end - begin));
    }
  }

  NameUses uses_;
};

}  // namespace

NameUses UsesOf(const ModelSpec& spec) { return UseCollector().Run(spec); }

}  // namespace shardinit
