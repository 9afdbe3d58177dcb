#include "graph/scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "expr/functions.h"

namespace shardinit {
namespace {

constexpr size_t kMaxVarDepth = 256;

}  // namespace

SpecScope::SpecScope(const std::vector<Named<ExprPtr>>& vars, bool lacks, Diagnostics& diagnostics)
    : lacks_(lacks) {
  for (const auto& var : vars) {
    if (!var.name.value.empty()) vars_.try_emplace(var.name.value, Var{&var});
  }
  // Every variable is evaluated, used or not, so that its mistakes show.
  for (const auto& var : vars) {
    if (Find(var.name.value, diagnostics) || !var.name.value.empty() || !var.value) continue;
    Evaluate(*var.value, *this, diagnostics);
  }
}

std::optional<Value> SpecScope::Find(const std::string& name, Diagnostics& diagnostics) const {
  for (const auto* list : {&loops_, &defined_}) {
    for (const auto& [variable, number] : *list) {
      if (variable != name) continue;
      if (trace_ != nullptr) Note(name, {}, number, {});
      return Value(number);
    }
  }
  const auto it = vars_.find(name);
  if (it == vars_.end()) return {};
  Var& var = it->second;
  if (var.state == Var::kDone) {
    if (trace_ != nullptr) Trace(var);
    return var.value;
  }
  if (var.state == Var::kBusy) {
    diagnostics.Error(var.named->name.span,
                      fmt::format("`{}` is defined by itself{}", name, ChainTo(name)));
    var.state = Var::kDone;
    return var.value;
  }
  if (chain_.size() == kMaxVarDepth) {
    diagnostics.Error(
        var.named->name.span,
        fmt::format("`{}` stands behind a chain of {} variables", name, chain_.size()));
    var.state = Var::kDone;
    return var.value;
  }
  var.state = Var::kBusy;
  chain_.push_back(&var.named->name.value);
  if (var.named->value) {
    const auto value = Evaluate(*var.named->value, *this, diagnostics);
    if (value && var.state == Var::kBusy) var.value = *value;
  }
  chain_.pop_back();
  var.state = Var::kDone;
  return var.value;
}

bool SpecScope::IsBroken(const std::string& name) const {
  const auto var = vars_.find(name);
  return var == vars_.end() ? lacks_ : !var->second.value;
}

std::vector<std::string> SpecScope::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : loops_) names.push_back(name);
  for (const auto& [name, value] : defined_) names.push_back(name);
  for (const auto& [name, var] : vars_) {
    if (var.state != Var::kBusy) names.push_back(name);  // No variable stands in its own value.
  }
  std::ranges::sort(names);
  return names;
}

bool SpecScope::Has(const std::string& name) const {
  const auto has = [&](const auto& list) {
    return std::ranges::any_of(list, [&](const auto& v) { return v.first == name; });
  };
  return vars_.count(name) != 0 || has(loops_) || has(defined_);
}

void SpecScope::Define(const std::string& name, int64_t value) {
  if (!Has(name)) defined_.emplace_back(name, value);
}

std::string SpecScope::ChainTo(const std::string& name) const {
  constexpr ptrdiff_t kMostShown = 8;
  const auto first =
      std::ranges::find_if(chain_, [&](const std::string* link) { return *link == name; });
  if (chain_.end() - first < 2 || chain_.end() - first > kMostShown) return {};
  std::string chain = ": ";
  for (auto it = first; it != chain_.end(); ++it) chain += **it + " → ";
  return chain + name;
}

bool SpecScope::Note(const std::string& name, std::string text, const Value& value,
                     Span span) const {
  for (const auto& use : *trace_) {
    if (use.name == name) return false;
  }
  trace_->push_back({name, std::move(text), FormatValue(value), span});
  return true;
}

void SpecScope::Trace(const Var& var) const {
  const ExprPtr& expr = var.named->value;
  if (!expr || !var.value || !Note(var.named->name.value, TextOf(*expr), *var.value, SpanOf(*expr)))
    return;
  Diagnostics heard_before;
  Evaluate(*expr, *this, heard_before);
}

std::string SpecScope::WithNumbers(std::string path) const {
  for (const auto& [variable, index] : loops_) {
    const std::string placeholder = "{" + variable + "}";
    for (size_t at = 0; (at = path.find(placeholder, at)) != std::string::npos;) {
      path.replace(at, placeholder.size(), fmt::format_int(index).str());
    }
  }
  return path;
}

std::optional<std::string> EvaluatePath(const PathSpec& path, const Scope& names,
                                        Diagnostics& diagnostics) {
  std::string text;
  for (const PathSpec::Part& part : path.parts) {
    text += part.text;
    if (part.number == nullptr) continue;
    const auto number = EvaluateInteger(*part.number, names, 0, std::numeric_limits<int64_t>::max(),
                                        "a number in a path", diagnostics);
    if (!number) return {};
    text += fmt::format_int(*number).str();
  }
  return text;
}

}  // namespace shardinit
