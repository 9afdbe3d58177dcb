#include "graph/drawn/initializer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/table.h"
#include "graph/drawn/dimensions.h"
#include "graph/validate.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

std::vector<Setting> SettingsOf(const Initializer& initializer, const InitSpec& init,
                                Arguments arguments) {
  std::vector<Setting> settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    Setting setting{std::string(initializer.parameters[i].name), {}, {}, {}};
    setting.value = argument.word.empty() ? fmt::format("{}", argument.value) : argument.word;
    for (const auto& written : init.arguments) {
      if (written.name.value != setting.name) continue;
      setting.text = TextOf(*written.value);
      setting.span = SpanOf(*written.value);
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace

void CheckInitNames(const ModelSpec& spec, Diagnostics& diagnostics) {
  for (const auto& init : spec.inits) {
    if (init.name.value.empty()) continue;
    if (FindInitializer(init.name.value) != nullptr) {
      diagnostics.Error(init.name.span,
                        fmt::format("`{}` is a built-in initializer", init.name.value),
                        "choose another name");
    }
  }
  std::vector<std::string> known;
  for (const auto& init : spec.inits) known.push_back(init.name.value);
  if (MayLack(spec.inits, spec.wrong.Has("init"))) return;
  for (const auto& [name, numbers] : spec.multipliers) {
    if (name.value.empty() || Contains(known, name.value)) continue;
    ReportUnknown("initializer of `init`", name, known, diagnostics);
  }
}

InitBinder::InitBinder(Building& building)
    : building_(building),
      diagnostics_(building.diagnostics),
      names_(building.names),
      why_(building.why) {
  for (const auto& init : building_.spec.inits) {
    if (!init.name.value.empty()) inits_.try_emplace(init.name.value, &init.value);
  }
}

void InitBinder::Bind(const Leaf& leaf, const Shape* shape, Tensor* tensor) {
  const TensorSpec& spec = leaf.spec;
  fans_.reset();
  if (!spec.init) return;
  const SpecScope::OutsideBlocks outside(names_, names_.blocks() - spec.init_around);
  const InitSpec* const init = FollowNames(*spec.init);
  if (init == nullptr || bad_inits_.count(init) != 0) return;
  if (shape != nullptr) fans_ = BindFans(leaf, *shape, building_);
  Fans fans = fans_ ? Fans(*shape, *fans_, init->name.value, spec.init->name.span) : Fans();
  const auto& engine = building_.spec.engine;
  fans.DrawZeros(engine && FindEngine(engine->value) == &kTorchCpu);
  why_.Note([&](Explanation& notes) { fans.ExplainIn(notes.working); });
  const size_t before = diagnostics_.errors();
  path_ = tensor->path();
  of_tensor_ = false;
  if (const auto distribution =
          Lower(*init, spec, tensor->dtype(), shape, fans_ ? &fans : nullptr)) {
    tensor->Edit().distribution = *distribution;
  }
  if (const auto [what, hint] = MisfitOf(tensor->distribution(), tensor->dtype()); !what.empty()) {
    diagnostics_.Error(init->name.span, fmt::format("values of `{}` {}", tensor->path(), what),
                       hint);
  }
  BindMultipliers(*spec.init);
  if (diagnostics_.errors() != before && !fans.reported() && !of_tensor_) bad_inits_.insert(init);
}

// Follows names of the spec to a built-in initializer; null: the names are wrong.
const InitSpec* InitBinder::FollowNames(const InitSpec& own) {
  const InitSpec* init = &own;
  for (size_t steps = 0;; ++steps) {
    why_.Note([&](Explanation& notes) {
      notes.initializers.push_back({init->name.value, {}, {}, init->name.span});
    });
    const auto it = inits_.find(init->name.value);
    if (it == inits_.end()) return init;
    if (steps > inits_.size()) {
      Report(*init, init->name.span, "`{}` is defined by itself");
      return nullptr;
    }
    if (!init->arguments.empty()) {
      Report(*init, init->arguments[0].name.span,
             "`{}` is an initializer of this spec and takes no arguments");
      return nullptr;
    }
    init = it->second;
  }
}

// Evaluates the multipliers of all names that lead to the initializer. The first multiplier of each
// kind counts.
void InitBinder::BindMultipliers(const InitSpec& own) {
  const auto& all = building_.spec.multipliers;
  std::vector<std::string> known;
  const InitSpec* init = all.empty() ? nullptr : &own;
  while (init != nullptr) {
    const std::string& initializer = init->name.value;
    const auto at =
        std::ranges::find_if(all, [&](const auto& each) { return each.name.value == initializer; });
    for (size_t i = 0; at != all.end() && i < at->value.size(); ++i) {
      BindMultiplier(at->value[i], &known);
    }
    const auto next = inits_.find(initializer);
    init = next == inits_.end() ? nullptr : next->second;
  }
}

void InitBinder::BindMultiplier(const Named<ExprPtr>& multiplier, std::vector<std::string>* known) {
  const std::string& name = multiplier.name.value;
  if (multiplier.value == nullptr || Contains(*known, name)) return;
  known->push_back(name);
  const Expr& expr = *multiplier.value;
  if (const auto value = EvaluateNumber(expr, names_, diagnostics_)) {
    why_.Note([&](Explanation& notes) {
      notes.multipliers.push_back({name, TextOf(expr), fmt::format("{}", *value), SpanOf(expr)});
    });
  }
}

// Reports an error in a named initializer once, even if many tensors use it.
void InitBinder::Report(const InitSpec& init, const Span& place, const char* mistake) {
  if (!bad_inits_.insert(&init).second) return;
  diagnostics_.Error(place, fmt::format(fmt::runtime(mistake), init.name.value));
}

// If `shape` and `fans` are null (unknown), checks only names and arguments.
std::optional<Distribution> InitBinder::Lower(const InitSpec& init, const TensorSpec& tensor,
                                              DType dtype, const Shape* shape, const Fans* fans) {
  if (init.name.value.empty()) return {};
  if (init.name.value == "file") return LowerFile(init, dtype, shape);
  if (init.name.value == "norms") return LowerNorm(init);
  if (init.name.value == "source") return LowerSource(init, tensor, dtype, shape);
  if (init.name.value == "rows_like") return LowerRowsLike(init, shape);
  if (init.name.value == "parts") return LowerParts(init, tensor, dtype, shape, fans);
  if (init.name.value == "expr") return LowerExpression(init, tensor, shape);
  const Initializer* row = FindInitializer(init.name.value);
  if (row != nullptr) return LowerRow(*row, init, tensor, shape, fans);
  if (!MayLack(building_.spec.inits, building_.spec.wrong.Has("init"))) ReportUnknownInit(init);
  return {};
}

void InitBinder::ReportUnknownInit(const InitSpec& init) {
  std::vector<std::string> known = InitializerNames();
  for (const auto& named : building_.spec.inits) known.push_back(named.name.value);
  const std::string hint = DidYouMean(init.name.value, known);
  diagnostics_.Error(init.name.span, fmt::format("unknown initializer `{}`", init.name.value),
                     hint.empty() ? "shardinit-spec(5) lists the initializers" : hint);
}

std::optional<Distribution> InitBinder::LowerRow(const Initializer& row, const InitSpec& init,
                                                 const TensorSpec& tensor, const Shape* shape,
                                                 const Fans* fans) {
  const auto arguments = BindArguments(row, init, tensor, shape);
  if (!arguments || shape == nullptr || fans == nullptr) return {};
  why_.Note([&](Explanation& notes) { notes.arguments = SettingsOf(row, init, *arguments); });
  return row.formula != nullptr ? LowerFormula(row, *arguments, *shape, init.name.span)
                                : row.lower(*arguments, *fans, diagnostics_);
}

bool InitBinder::CheckParameters(const Initializer& row, const InitSpec& init) {
  bool all_known = true;
  for (const auto& argument : init.arguments) {
    all_known &= !argument.name.value.empty();
    if (argument.name.value.empty()) continue;
    const std::vector<std::string> known = NamesOf(row.parameters);
    if (Contains(known, argument.name.value)) continue;
    diagnostics_.Error(
        argument.name.span,
        fmt::format("`{}` has no parameter `{}`", init.name.value, argument.name.value),
        known.empty() ? "it takes no arguments" : DidYouMean(argument.name.value, known));
    all_known = false;
    if (argument.value && !IsName(*argument.value)) {  // a name may be a word
      EvaluateNumber(*argument.value, names_, diagnostics_);
    }
  }
  return all_known;
}

// Returns nothing if an argument is wrong, but still checks the others.
std::optional<std::vector<Argument>> InitBinder::BindArguments(const Initializer& row,
                                                               const InitSpec& init,
                                                               const TensorSpec& tensor,
                                                               const Shape* shape) {
  const bool all_known = CheckParameters(row, init);
  bool complete = all_known;
  std::vector<Argument> arguments;
  for (const Parameter& parameter : row.parameters) {
    const auto it = std::ranges::find_if(
        init.arguments, [&](const auto& a) { return a.name.value == parameter.name; });
    if (it != init.arguments.end()) {
      const auto argument =
          it->value ? BindArgument(parameter, *it->value, tensor, shape) : std::nullopt;
      complete &= argument.has_value();
      arguments.push_back(argument.value_or(Argument{}));
    } else if (const auto* number = std::get_if<double>(&parameter.default_value)) {
      arguments.push_back({*number, init.name.span});
    } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
      arguments.push_back({0, init.name.span, *word});
    } else if (all_known) {  // else the misspelt one was probably intended
      diagnostics_.Error(init.name.span,
                         fmt::format("`{}` needs `{}`", init.name.value, parameter.name),
                         fmt::format("write `{{{}: {{{}: …}}}}`", init.name.value, parameter.name));
      complete = false;
    }
  }
  if (!complete) return {};
  return arguments;
}

// Binds a number, or one of the parameter's words. Words take precedence. A variable with the name
// of such a word is ambiguous and is reported.
std::optional<Argument> InitBinder::BindArgument(const Parameter& parameter, const Expr& expr,
                                                 const TensorSpec& tensor, const Shape* shape) {
  const std::string& text = TextOf(expr);
  const Span span = SpanOf(expr);
  const auto word = std::ranges::find(parameter.words, text);
  if (word != parameter.words.end()) {
    if (!parameter.number || !names_.Has(text)) return Argument{0, span, *word};
    return diagnostics_.Error(
        span,
        fmt::format("`{}` is a word that `{}` takes, and a variable too", text, parameter.name),
        fmt::format("give the variable another name, or write `1 * {}` for its value", text));
  }
  if (parameter.number && IsName(expr) && names_.IsBroken(text)) return {};
  if (parameter.dimension) {
    DimensionRef ref{text, span};
    if (!IsName(expr) || names_.Has(text)) {
      const auto position = EvaluateInteger(expr, names_, std::numeric_limits<int64_t>::min(),
                                            std::numeric_limits<int64_t>::max(),
                                            fmt::format("`{}`", parameter.name), diagnostics_);
      if (!position) return {};
      ref.value = *position;
    }
    if (shape == nullptr) return {};
    const auto d = FindDimension(tensor, *shape, parameter.name, ref, diagnostics_);
    if (!d) return {};
    return Argument{static_cast<double>(*d), span};
  }
  if (!parameter.number || (!parameter.words.empty() && IsName(expr) && !names_.Has(text))) {
    std::vector<std::string> known(parameter.words.begin(), parameter.words.end());
    if (parameter.number) {
      for (const auto& name : names_.Names()) known.push_back(name);
    }
    return diagnostics_.Error(
        span,
        parameter.number
            ? fmt::format("`{}` must be a number or a known word, not `{}`", parameter.name, text)
            : fmt::format("unknown {} `{}`", parameter.name, text),
        DidYouMean(text, known));
  }
  const auto value = EvaluateNumber(expr, names_, diagnostics_);
  if (!value) return {};
  return Argument{*value, span};
}

std::optional<Distribution> InitBinder::LowerExpression(const InitSpec& init,
                                                        const TensorSpec& tensor,
                                                        const Shape* shape) {
  if (init.expr == nullptr) {
    return diagnostics_.Error(init.name.span, "`expr` needs an expression",
                              "write `{expr: \"where(row >= col, normal() * 0.02, 0)\"}`");
  }
  // An expression may also name axes.
  if (shape == nullptr || tensor.wrong.Has("axes")) return {};
  const auto axes = tensor.axes ? ValuesOf(tensor.axes->value) : std::vector<std::string>();
  why_.Note([&](Explanation& notes) {
    notes.arguments.push_back({"expr", TextOf(*init.expr), {}, SpanOf(*init.expr)});
  });
  return Intern(Compile(*init.expr, *shape, axes, names_, diagnostics_, SourcesOf(*init.expr)));
}

// Checks only the size of the file. Its bytes are checked when they are needed.
std::optional<Distribution> InitBinder::LowerFile(const InitSpec& init, DType dtype,
                                                  const Shape* shape) {
  if (!init.file) {
    return diagnostics_.Error(init.name.span, "`file` needs the path of a file",
                              "write `{file: {path: positions.bin, sha256: …}}`");
  }
  if (shape == nullptr) return {};
  const Located<std::string>&path = init.file->path, &sha256 = init.file->sha256;
  try {
    RequireLocal(path.value);
  } catch (const Error& error) {
    return diagnostics_.Error(path.span, error.what(), error.hint());
  }
  const std::filesystem::path folder = std::filesystem::path(path.span.source->name).parent_path();
  const std::string name = (folder / path.value).string();
  const bool of_bools = dtype == DType::boolean;
  std::shared_ptr<const CheckedFile>& file = files_[{name, sha256.value, of_bools}];
  if (file == nullptr) {
    file = std::make_shared<CheckedFile>(
        name, FileSize(name), sha256.value,
        fmt::format("{}:{}:{}", path.span.source->name, sha256.span.line, sha256.span.column),
        of_bools);
  }
  if (!CheckFile(name, path.span, file->size(), *shape, dtype)) return {};
  why_.Note([&](Explanation& notes) {
    notes.arguments.push_back({"path", path.value, {}, path.span});
    notes.arguments.push_back({"sha256", sha256.value, {}, sha256.span});
  });
  return FromFile{sha256.value, file};
}

// Checks the size of a file. `size` is negative if the file cannot be read.
bool InitBinder::CheckFile(const std::string& name, const Span& place, int64_t size,
                           const Shape& shape, DType dtype) {
  const int64_t bytes = ElementCount(shape) * InfoOf(dtype).bytes;
  if (size == bytes) return true;
  std::error_code ignored;
  if (size >= 0) {
    diagnostics_.Error(place,
                       fmt::format("`{}` has {} bytes, but the elements of [{}] in {} need {}",
                                   name, size, fmt::join(shape, ", "), InfoOf(dtype).name, bytes),
                       "the file must contain only the tensor's elements, in its `dtype`");
  } else if (std::filesystem::exists(std::filesystem::status(name, ignored))) {
    diagnostics_.Error(place, fmt::format("`{}` is not a file with bytes to read", name));
  } else {
    diagnostics_.Error(place, fmt::format("there is no file `{}`", name),
                       "paths are relative to the file that has them");
  }
  return false;
}

std::optional<Distribution> InitBinder::LowerNorm(const InitSpec& init) {
  if (!init.of) {
    return diagnostics_.Error(init.name.span, "`norms` needs the path of a tensor",
                              "write `{norms: {of: path.of.a.tensor}}`");
  }
  why_.Note([&](Explanation& notes) {
    notes.arguments.push_back({"of", init.of->value, {}, init.of->span});
  });
  return Norm{names_.WithNumbers(init.of->value)};
}

std::optional<Distribution> InitBinder::LowerFormula(const Initializer& initializer,
                                                     Arguments arguments, const Shape& shape,
                                                     Span span) {
  const auto formula = initializer.formula(arguments, shape, span, diagnostics_);
  if (!formula) return {};
  const LookupScope parameters([&](std::string_view name) {
    const Parameter* known = FindNamed(initializer.parameters, name);
    return known == nullptr
               ? std::nullopt
               : std::optional<Value>(
                     arguments[static_cast<size_t>(known - initializer.parameters.data())].value);
  });
  const ExprPtr expr = ParseExpr(*formula, span, diagnostics_);
  Check(expr != nullptr, "a formula that cannot be parsed");
  return Intern(Compile(*expr, shape, {}, parameters, diagnostics_));
}

// Shares one program among all layers with the same text.
std::optional<Distribution> InitBinder::Intern(std::shared_ptr<const Program> program) {
  if (program == nullptr) return {};
  return Expression{programs_.try_emplace(program->text, program).first->second};
}

}  // namespace shardinit
