#include "graph/languages/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unordered_map>

#include "base/suggest.h"
#include "base/table.h"
#include "graph/languages/languages.h"
#include "sharding/rules.h"

namespace shardinit {
namespace {

void CollectAxes(const ModuleSpec& module, std::set<std::string>* axes) {
  for (const auto& member : module.members) {
    const auto* tensor = std::get_if<TensorSpec>(&member.value);
    if (tensor == nullptr) {
      CollectAxes(*std::get<std::unique_ptr<ModuleSpec>>(member.value), axes);
    } else if (tensor->axes) {
      for (const auto& name : tensor->axes->value) {
        if (!name.value.empty()) axes->insert(name.value);
      }
    }
  }
}

class RuleLanguage : public ShardingLanguage {
 public:
  // `keeps_others`: an axis that no rule names stays whole without an error.
  RuleLanguage(Building& building, const Mesh& mesh, std::vector<RuleSpec> rules, bool is_wrong,
               bool keeps_others = false)
      : building_(building), mesh_(mesh), written_(std::move(rules)), keeps_others_(keeps_others) {
    const ModelSpec& spec = building.spec;
    const size_t before = building.Reported();
    for (const RuleSpec& rule : written_) {
      lacks_rules_ |= rule.logical.value.empty();
      std::vector<int> used;
      rules_.push_back({rule.logical.value, BindAxes(rule.axes, mesh, &used, building)});
      if (!Contains(logical_, rule.logical.value)) logical_.push_back(rule.logical.value);
    }
    knows_rules_ =
        !is_wrong && !MayLack(spec.mesh, spec.wrong.Has("mesh")) && building.Reported() == before;
    lacks_rules_ |= written_.empty() && is_wrong;
  }

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.axes == nullptr) return true;
    const AxisNames& axes = *tensor.axes;
    const auto [known, is_new] = resolved_.try_emplace(&axes);
    if (is_new) CheckNames(axes);
    if (!knows_rules_ || axes.size() != tensor.shape.size()) return false;
    auto& resolved = known->second;
    if (resolved.partition.dimensions.size() != axes.size()) {
      resolved = ResolveRules(ValuesOf(axes), rules_);
    }
    const std::vector<Pin>& pins = sharding->partition.pins;
    const RulesResult beside_pins = ResolveBesidePins(resolved, ValuesOf(axes), pins);
    building_.why.Note([&](Explanation& notes) {
      for (const RuleTrial& trial : beside_pins.trials) notes.rules.push_back(Explain(trial, pins));
    });
    sharding->partition.dimensions = beside_pins.partition.dimensions;
    sharding->says_sharding = true;
    return true;
  }

  // Reports rules for logical axes that no tensor has, because one of the two is misspelt.
  void CheckUse() override {
    if (unknown_logical_ || building_.spec.wrong.Has("layouts")) return;
    const std::set<std::string> written = LogicalAxes(building_.spec);
    for (const RuleSpec& rule : written_) {
      if (rule.logical.value.empty() || written.count(rule.logical.value) != 0) continue;
      const std::vector<std::string> seen(written.begin(), written.end());
      building_.diagnostics.Error(
          rule.logical.span, fmt::format("no tensor has the logical axis `{}`", rule.logical.value),
          seen.empty() ? kNoLogicalAxes : DidYouMean(rule.logical.value, seen));
    }
  }

 private:
  void CheckNames(const AxisNames& axes) {
    std::set<std::string_view> of_tensor;
    for (const auto& name : axes) {
      if (name.value.empty()) continue;
      if (!of_tensor.insert(name.value).second) {
        building_.diagnostics.Error(
            name.span,
            fmt::format("`{}` is the name of two axes, which Flax's rules reject", name.value),
            fmt::format("rename one of them and give it a rule, or use `sharding: {{haliax: {{{0}: "
                        "AXIS, {0}#2: AXIS}}}}`",
                        name.value));
      }
      if (!seen_.insert(name.value).second) continue;
      if (Contains(logical_, name.value)) continue;
      if (lacks_rules_ || keeps_others_) continue;
      unknown_logical_ = true;
      const std::string closest = DidYouMean(name.value, logical_);
      building_.diagnostics.Error(
          name.span, fmt::format("no rule names the logical axis `{}`", name.value),
          fmt::format("{}{}`{{{}: null}}` in `rules` keeps it whole", closest,
                      closest.empty()          ? ""
                      : closest.ends_with('?') ? " "
                                               : "; ",
                      name.value));
    }
  }

  Explanation::TriedRule Explain(const RuleTrial& trial, const std::vector<Pin>& pins) const {
    const RuleSpec& rule = written_[trial.rule];
    const bool is_pinned =
        std::ranges::any_of(pins, [&](const Pin& pin) { return pin.axis == trial.taken; });
    return {trial.dimension,
            {rule.logical.value,
             fmt::format("{{{}: {}}}", rule.logical.value, InText(rule.axes)),
             {},
             rule.logical.span},
            trial.taken < 0
                ? ""
                : fmt::format("{} {}", mesh_.axes[static_cast<size_t>(trial.taken)],
                              is_pinned ? "already determines which ranks hold the tensor"
                                        : "shards another dimension already")};
  }

  // Resolves again with the fallbacks of the rules that name a pinned mesh axis, if there are any.
  RulesResult ResolveBesidePins(const RulesResult& resolved,
                                const std::vector<std::string>& logical_axes,
                                const std::vector<Pin>& pins) const {
    std::vector<int> used;
    for (const Pin& pin : pins) used.push_back(pin.axis);
    const auto clashes = [&](const DimensionPartition& of) {
      return std::ranges::find_first_of(of.axes, used) != of.axes.end();
    };
    if (std::ranges::none_of(resolved.partition.dimensions, clashes)) return resolved;
    RulesResult other = ResolveRules(logical_axes, rules_, used);
    return LacksFallBack(other) ? resolved : other;
  }

  Building& building_;
  const Mesh& mesh_;
  const std::vector<RuleSpec> written_;
  const bool keeps_others_;
  std::vector<Rule> rules_;
  std::vector<std::string> logical_;  // names in the rules
  bool lacks_rules_ = false;          // some rules may be unknown
  bool knows_rules_ = true;           // no rule is wrong
  bool unknown_logical_ = false;      // a tensor's axis that no rule names was reported
  std::set<std::string> seen_;        // names on tensors
  // Caches the result for each list of axes, because a model may have thousands of layers.
  std::unordered_map<const AxisNames*, RulesResult> resolved_;
};

// Reads rules `{logical: axis}` or, as Flax and MaxText write them, `[logical, axis]`.
std::unique_ptr<ShardingLanguage> ReadRuleList(LanguageContext& context, const LanguageText& text) {
  constexpr std::string_view kForm =
      "a rule has the form `{logical: axis}` or `[logical, [axis, axis]]`; null for no axis";
  const Node& list = *text.value;
  const size_t before = context.building.Reported();
  std::vector<RuleSpec> rules;
  bool keeps_others = false;  // `{*: null}`: axes that no rule names stay whole
  if (!list.IsSequence()) {
    return context.Error(list.span, fmt::format("`rules` takes a list, not {}", Describe(list)),
                         std::string(kForm));
  }
  for (const Node::Entry& item : list.entries) {
    const Node& rule = *item.value;
    const bool is_map = rule.IsMap() && rule.entries.size() == 1;
    if (!is_map && !(rule.IsSequence() && rule.entries.size() == 2)) {
      context.Error(rule.span, fmt::format("{} is not a rule", Describe(rule)), std::string(kForm));
      rules.emplace_back();
      continue;
    }
    const Node& logical = is_map ? *rule.entries[0].key : *rule.entries[0].value;
    const Node& axes = is_map ? *rule.entries[0].value : *rule.entries[1].value;
    if (logical.IsScalar() && logical.text == "*" && axes.IsNull()) {
      keeps_others = true;
      continue;
    }
    rules.push_back({context.reader.ReadAxisName(logical, "logical axis"),
                     context.reader.ReadMeshAxisList(axes)});
  }
  if (list.entries.empty()) context.Error(list.span, "`rules` is empty", std::string(kForm));
  const bool is_wrong = context.building.Reported() != before;
  return std::make_unique<RuleLanguage>(context.building, context.mesh, std::move(rules), is_wrong,
                                        keeps_others);
}

}  // namespace

std::set<std::string> LogicalAxes(const ModelSpec& spec) {
  std::set<std::string> axes;
  CollectAxes(spec.modules, &axes);
  for (const auto& layout : spec.layouts) CollectAxes(layout.value.modules, &axes);
  return axes;
}

std::string InText(const AxisList& axes) {
  if (axes.value.empty()) return "null";
  const std::vector<std::string> names = ValuesOf(axes.value);
  return names.size() == 1 ? names[0] : fmt::format("[{}]", fmt::join(names, ", "));
}

std::unique_ptr<ShardingLanguage> Rules(Building& building, const Mesh& mesh,
                                        std::vector<RuleSpec> rules, bool is_wrong) {
  return std::make_unique<RuleLanguage>(building, mesh, std::move(rules), is_wrong);
}

extern const LanguageRow kRuleLanguage = {
    .name = "rules",
    .description = "logical axes to mesh axes, tried in order, as `rules` of a spec",
    .is_word = false,
    .read = ReadRuleList,
};

}  // namespace shardinit
