#include "graph/scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/suggest.h"
#include "base/text.h"
#include "expr/functions.h"
#include "expr/program.h"
#include "graph/drawn/expand.h"

namespace shardinit {
namespace {

constexpr size_t kMaxVarDepth = 256;

// Describes `name` in the first module that defines it for its members; empty if no module does.
std::string MeaningBelow(const ModuleSpec& module, const std::string& path,
                         const std::string& name) {
  const auto has = [&](const std::vector<Named<VarSpec>>& vars) {
    return std::ranges::any_of(vars, [&](const auto& var) { return var.name.value == name; });
  };
  if (module.repeat && module.repeat->name.value == name) {
    return fmt::format("the variable of the repeat {}", Quote(path));
  }
  if (has(module.vars)) return fmt::format("a variable of the module {}", Quote(path));
  if (module.arguments && has(*module.arguments)) {
    return fmt::format("an argument of the block at {}", Quote(path));
  }
  for (const auto& member : module.members) {
    const auto* below = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value);
    if (below == nullptr) continue;
    std::string meaning = MeaningBelow(**below, JoinPaths(path, member.name.value), name);
    if (!meaning.empty()) return meaning;
  }
  return {};
}

}  // namespace

SpecScope::SpecScope(const std::vector<Named<VarSpec>>& vars, bool lacks, const ModuleSpec& modules,
                     Diagnostics& diagnostics)
    : lacks_(lacks), modules_(&modules) {
  for (const auto& var : vars) {
    if (!var.name.value.empty()) vars_.try_emplace(var.name.value, Var{&var});
  }
  // Evaluate every variable, used or not, so that its errors are reported.
  for (const auto& var : vars) {
    if (var.name.value.empty()) {
      Evaluate(var.value, diagnostics);
    } else {
      FindVariable(var.name.value, diagnostics);
    }
  }
}

std::optional<VarValue> SpecScope::Evaluate(const VarSpec& var, Diagnostics& diagnostics) const {
  VarValue list = {true, {}};
  bool is_good = true;
  if (!var.is_list && var.items[0] != nullptr && IsUnknownWord(*var.items[0], diagnostics)) {
    const std::string word = TextOf(*var.items[0]), names = DidYouMean(word, Names());
    return diagnostics.Error(
        SpanOf(*var.items[0]), fmt::format("unknown name {}", Quote(word)),
        fmt::format("{}{}text is `{{text: {}}}`", names, names.empty() ? "" : "; ", word));
  }
  for (const ExprPtr& expr : var.items) {
    auto value = expr == nullptr ? std::nullopt : EvaluateVariable(*expr, *this, diagnostics);
    is_good &= value.has_value();
    if (!var.is_list) return value;
    if (!value) continue;
    if (value->is_list) {
      diagnostics.Error(SpanOf(*expr),
                        fmt::format("the list `{}` is inside another list", TextOf(*expr)),
                        "an item is a number or text");
      is_good = false;
    } else {
      list.items.push_back(std::move(value->items[0]));
    }
  }
  if (!is_good) return {};
  return list;
}

bool SpecScope::IsUnknownWord(const Expr& expr, Diagnostics& diagnostics) const {
  if (!IsName(expr)) return false;
  const std::string name(TextOf(expr));
  return FindVariable(name, diagnostics) == nullptr && !IsBroken(name) && PlaceOf(name).empty() &&
         !IsElementName(name);
}

std::optional<Value> SpecScope::Find(const std::string& name, Diagnostics& diagnostics) const {
  const VarValue* constant = FindVariable(name, diagnostics);
  if (constant == nullptr || constant->is_list) return {};
  if (const auto* integer = std::get_if<int64_t>(&constant->items[0])) return *integer;
  if (const auto* number = std::get_if<double>(&constant->items[0])) return *number;
  return {};
}

SpecScope::Local* SpecScope::FindLocal(const std::string& name) const {
  const size_t end = std::min(end_, locals_.size());
  for (size_t i = begin_; i < end; ++i) {
    if (locals_[i].name == name) return &locals_[i];
  }
  return nullptr;
}

const VarValue* SpecScope::FindVariable(const std::string& name, Diagnostics& diagnostics) const {
  if (Local* local = FindLocal(name)) {
    if (local->var.named != nullptr) return ValueOf(local->var, diagnostics);
    if (trace_ != nullptr) Note(name, {}, *local->var.value, {});
    return &*local->var.value;
  }
  for (const auto& [variable, value] : defined_) {
    if (variable != name) continue;
    if (trace_ != nullptr) Note(name, {}, value, {});
    return &value;
  }
  const auto it = vars_.find(name);
  return it == vars_.end() ? nullptr : ValueOf(it->second, diagnostics);
}

const VarValue* SpecScope::ValueOf(Var& var, Diagnostics& diagnostics) const {
  const std::string& name = var.named->name.value;
  const auto value = [&] { return var.value ? &*var.value : nullptr; };
  if (var.state == Var::kDone) {
    if (trace_ != nullptr) Trace(var);
    return value();
  }
  if (var.state == Var::kBusy) {
    diagnostics.Error(var.named->name.span,
                      fmt::format("`{}` is defined by itself{}", name, ChainTo(name)));
    var.state = Var::kDone;
    return value();
  }
  if (chain_.size() == kMaxVarDepth) {
    diagnostics.Error(var.named->name.span,
                      fmt::format("`{}` depends on a chain of {} variables", name, chain_.size()));
    var.state = Var::kDone;
    return value();
  }
  var.state = Var::kBusy;
  chain_.push_back(&name);
  const auto computed = Evaluate(var.named->value, diagnostics);
  if (computed && var.state == Var::kBusy) var.value = *computed;
  chain_.pop_back();
  var.state = Var::kDone;
  return value();
}

bool SpecScope::IsBroken(const std::string& name) const {
  if (const Local* local = FindLocal(name)) return !local->var.value;
  if (IsDefined(name)) return false;
  const auto var = vars_.find(name);
  return var == vars_.end() ? lacks_ : !var->second.value;
}

std::vector<std::string> SpecScope::Names() const {
  // A variable cannot be used in its own value.
  std::vector<std::string> names;
  for (size_t i = begin_; i < std::min(end_, locals_.size()); ++i) {
    if (locals_[i].var.state != Var::kBusy) names.push_back(locals_[i].name);
  }
  for (const auto& [name, value] : defined_) names.push_back(name);
  for (const auto& [name, var] : vars_) {
    if (var.state != Var::kBusy) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::string SpecScope::PlaceOf(const std::string& name) const {
  if (std::ranges::find(locals_, name, &Local::name) != locals_.end()) {
    return fmt::format("a block knows only its `args`: add {} to them", Quote(name));
  }
  const std::string meaning = MeaningBelow(*modules_, {}, name);
  if (meaning.empty()) return {};
  return fmt::format("{} is {}, and is only known inside it", Quote(name), meaning);
}

std::vector<std::string> SpecScope::LoopNames() const {
  std::vector<std::string> names;
  for (size_t i = begin_; i < std::min(end_, locals_.size()); ++i) {
    if (locals_[i].var.named == nullptr) names.push_back(locals_[i].name);
  }
  return names;
}

bool SpecScope::IsDefined(const std::string& name) const {
  return std::ranges::any_of(defined_, [&](const auto& each) { return each.first == name; });
}

bool SpecScope::Has(const std::string& name) const {
  return vars_.count(name) != 0 || FindLocal(name) != nullptr || IsDefined(name);
}

void SpecScope::Define(const std::string& name, int64_t value) {
  if (!Has(name)) defined_.emplace_back(name, VarValue{false, {value}});
}

SpecScope::Variables::Variables(SpecScope& scope, const std::vector<Named<VarSpec>>& vars,
                                Diagnostics& diagnostics)
    : scope_(scope), before_(scope.locals_.size()) {
  for (const auto& var : vars) {
    const std::string& name = var.name.value;
    if (name.empty()) continue;
    if (scope.Has(name)) {
      diagnostics.Error(var.name.span,
                        fmt::format("`{}` already names a variable or a repeat around it", name),
                        "choose another name for this variable");
      continue;
    }
    scope.locals_.push_back({name, {&var}});
  }
  for (size_t i = before_; i < scope.locals_.size(); ++i) {
    scope.FindVariable(scope.locals_[i].name, diagnostics);
  }
}

SpecScope::Block::Block(SpecScope& scope, const std::vector<Named<VarSpec>>& arguments,
                        Diagnostics& diagnostics)
    : scope_(scope), before_(scope.locals_.size()) {
  std::vector<Local> computed;
  for (const auto& argument : arguments) {
    const std::string& name = argument.name.value;
    Var var = {&argument, Var::kDone, scope.Evaluate(argument.value, diagnostics), true};
    if (scope.vars_.count(name) != 0 || scope.IsDefined(name)) {
      diagnostics.Error(
          argument.name.span,
          fmt::format("the argument `{}` and a variable of the spec have the same name", name),
          "choose another name for one of them");
    } else {
      computed.push_back({name, std::move(var)});
    }
  }
  std::ranges::move(computed, std::back_inserter(scope.locals_));
  scope.blocks_.push_back(before_);
  scope.begin_ = before_;
}

SpecScope::Block::~Block() {
  scope_.locals_.resize(before_);
  scope_.blocks_.pop_back();
  scope_.begin_ = scope_.blocks_.back();
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

bool SpecScope::Note(const std::string& name, std::string text, const VarValue& value,
                     Span span) const {
  for (const auto& use : *trace_) {
    if (use.name == name) return false;
  }
  trace_->push_back({name, std::move(text), FormatVariable(value), span});
  return true;
}

void SpecScope::Trace(const Var& var) const {
  const auto& [name, spec] = *var.named;
  if (!var.value) return;
  const Span span = spec.is_list ? spec.span : SpanOf(*spec.items[0]);
  if (!Note(name.value, TextOf(spec), *var.value, span) || var.is_argument) return;
  Diagnostics heard_before;
  Evaluate(spec, heard_before);
}

std::string SpecScope::WithNumbers(std::string path) const {
  for (size_t i = begin_; i < std::min(end_, locals_.size()); ++i) {
    const auto& [variable, var] = locals_[i];
    if (var.named != nullptr) continue;
    const std::string placeholder = "{" + variable + "}", number = FormatVariable(*var.value);
    for (size_t at = 0; (at = path.find(placeholder, at)) != std::string::npos;) {
      path.replace(at, placeholder.size(), number);
      at += number.size();
    }
  }
  return path;
}

std::string FormatVariable(const VarValue& constant) {
  std::string text;
  for (const VarItem& item : constant.items) {
    const auto* word = std::get_if<std::string>(&item);
    const auto* number = std::get_if<double>(&item);
    text += text.empty() ? "" : ", ";
    text += word != nullptr     ? *word
            : number != nullptr ? FormatValue(*number)
                                : fmt::format_int(std::get<int64_t>(item)).str();
  }
  return constant.is_list ? fmt::format("[{}]", text) : text;
}

std::optional<PathSpec> ParsePath(const std::string& text, Span place, Diagnostics& diagnostics) {
  PathSpec path = {{text, place}, {}};
  for (size_t at = 0; at < text.size();) {
    const size_t open = std::min(text.find('{', at), text.size());
    PathSpec::Part part = {text.substr(at, open - at), nullptr};
    at = open;
    if (open < text.size()) {
      const size_t close = text.find('}', open);
      if (close == text.npos) {
        return diagnostics.Error(place, fmt::format("`{}` has a `{{` without its `}}`", text));
      }
      part.number = ParseExpr(text.substr(open + 1, close - open - 1), place, diagnostics);
      if (part.number == nullptr) return {};
      at = close + 1;
    }
    path.parts.push_back(std::move(part));
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
