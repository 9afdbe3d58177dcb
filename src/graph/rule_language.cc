#include "graph/rule_language.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/suggest.h"

namespace shardinit {
namespace {

// The logical axes of all tensors: a rule for what is left out is no mistake.
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

}  // namespace

RuleLanguage::RuleLanguage(Building& building, const Mesh& mesh)
    : building_(building), mesh_(mesh) {
  const ModelSpec& spec = building.spec;
  const size_t before = building.Reported();
  for (const RuleSpec& rule : spec.rules) {
    lacks_rules_ |= rule.logical.value.empty();
    std::vector<int> used;
    rules_.push_back({rule.logical.value, BindAxes(rule.axes, mesh, &used, building)});
    if (std::find(logical_.begin(), logical_.end(), rule.logical.value) == logical_.end()) {
      logical_.push_back(rule.logical.value);
    }
  }
  knows_rules_ = !spec.wrong.Has("rules") && !MayLack(spec.mesh, spec.wrong.Has("mesh")) &&
                 building.Reported() == before;
  lacks_rules_ |= spec.rules.empty() && spec.wrong.Has("rules");
}

std::optional<PartitionSpec> RuleLanguage::Shard(std::string_view, const Shape& shape,
                                                 const AxisNames& axes, ShardingNotes* notes) {
  const auto [known, is_new] = partitions_.try_emplace(&axes);
  if (is_new) CheckNames(axes);
  if (!knows_rules_ || axes.size() != shape.size()) return {};
  if (known->second.cuts.size() != axes.size() || notes != nullptr) {
    std::vector<std::string> logical;
    for (const auto& name : axes) logical.push_back(name.value);
    std::vector<int> fired;
    std::vector<RuleTrial> trials;
    known->second = ResolveRules(logical, rules_, &fired, notes != nullptr ? &trials : nullptr);
    for (const RuleTrial& trial : trials) notes->rules.push_back(Explain(trial));
  }
  return known->second;
}

void RuleLanguage::CheckNames(const AxisNames& axes) {
  for (const auto& name : axes) {
    if (name.value.empty()) continue;
    if (!seen_.insert(name.value).second) continue;
    if (std::find(logical_.begin(), logical_.end(), name.value) != logical_.end()) continue;
    if (lacks_rules_) continue;
    unknown_logical_ = true;
    const std::string closest = DidYouMean(name.value, logical_);
    building_.diagnostics.Error(
        name.span, fmt::format("no rule names the logical axis `{}`", name.value),
        fmt::format("{}; `{{{}: null}}` in `rules` keeps it whole", closest, name.value));
  }
}

ShardingNotes::Trial RuleLanguage::Explain(const RuleTrial& trial) const {
  const RuleSpec& rule = building_.spec.rules[trial.rule];
  std::vector<std::string> axes;
  for (const auto& name : rule.axes.value) axes.push_back(name.value);
  const std::string text = axes.size() == 1 ? axes[0]
                           : axes.empty()   ? "null"
                                            : fmt::format("[{}]", fmt::join(axes, ", "));
  return {trial.dimension,
          {rule.logical.value,
           fmt::format("{{{}: {}}}", rule.logical.value, text),
           {},
           rule.logical.span},
          trial.taken < 0 ? ""
                          : fmt::format("{} cuts another dimension already",
                                        mesh_.axes[static_cast<size_t>(trial.taken)])};
}

// A logical axis that no tensor has is a misspelt one, here or there.
void RuleLanguage::CheckUse() {
  const ModelSpec& spec = building_.spec;
  if (unknown_logical_ || spec.wrong.Has("modules") || spec.wrong.Has("layouts")) return;
  std::set<std::string> written;
  CollectAxes(spec.modules, &written);
  for (const auto& layout : spec.layouts) CollectAxes(layout.value.modules, &written);
  for (const RuleSpec& rule : spec.rules) {
    if (rule.logical.value.empty() || written.count(rule.logical.value) != 0) continue;
    const std::vector<std::string> seen(written.begin(), written.end());
    building_.diagnostics.Error(
        rule.logical.span, fmt::format("no tensor has the logical axis `{}`", rule.logical.value),
        seen.empty() ? "no tensor names its `axes`" : DidYouMean(rule.logical.value, seen));
  }
}

}  // namespace shardinit
