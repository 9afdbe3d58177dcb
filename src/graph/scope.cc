#include "graph/scope.h"

#include <fmt/format.h>

#include <algorithm>

#include "expr/functions.h"

namespace shardinit {
namespace {

constexpr int kMaxVarDepth = 256;

}  // namespace

SpecScope::SpecScope(const std::vector<Named<ExprPtr>>& vars, Diagnostics& diagnostics) {
  for (const auto& var : vars) vars_.try_emplace(var.name.value, Var{&var});
  // Every variable is evaluated, used or not, so that its mistakes show.
  for (const auto& var : vars) Find(var.name.value, diagnostics);
}

std::optional<Value> SpecScope::Find(const std::string& name, Diagnostics& diagnostics) const {
  for (auto it = repeats_.rbegin(); it != repeats_.rend(); ++it) {
    if (it->first != name) continue;
    if (trace_ != nullptr) Note(name, {}, it->second, {});
    return Value(it->second);
  }
  const auto it = vars_.find(name);
  if (it == vars_.end()) return {};
  Var& var = it->second;
  if (var.state == Var::kDone) {
    if (trace_ != nullptr) Trace(var);
    return var.value;
  }
  var.value = int64_t{1};  // Neutral, should it be wrong: its mistake is reported once.
  if (var.state == Var::kBusy) {
    diagnostics.Error(var.named->name.span, fmt::format("`{}` is defined by itself", name));
    var.state = Var::kDone;
    return var.value;
  }
  if (depth_ == kMaxVarDepth) {
    diagnostics.Error(var.named->name.span,
                      fmt::format("`{}` stands behind a chain of {} variables", name, depth_));
    var.state = Var::kDone;
    return var.value;
  }
  var.state = Var::kBusy;
  ++depth_;
  if (var.named->value) {
    const auto value = Evaluate(*var.named->value, *this, diagnostics);
    if (value && var.state == Var::kBusy) var.value = *value;
  }
  --depth_;
  var.state = Var::kDone;
  return var.value;
}

std::vector<std::string> SpecScope::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : repeats_) names.push_back(name);
  for (const auto& [name, var] : vars_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

bool SpecScope::Has(const std::string& name) const {
  return vars_.count(name) != 0 ||
         std::any_of(repeats_.begin(), repeats_.end(),
                     [&](const auto& repeat) { return repeat.first == name; });
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
  if (!expr || !Note(var.named->name.value, TextOf(*expr), var.value, SpanOf(*expr))) return;
  Diagnostics heard_before;
  Evaluate(*expr, *this, heard_before);
}

}  // namespace shardinit
