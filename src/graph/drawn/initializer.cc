#include "graph/drawn/initializer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/local_path.h"
#include "base/suggest.h"
#include "graph/drawn/dimensions.h"
#include "graph/validate.h"

namespace shardinit {
namespace {

// Returns the arguments for an explanation.
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
                        fmt::format("`{}` is the tool's own initializer", init.name.value),
                        "choose another name");
    }
  }
}

InitBinder::InitBinder(Building& building)
    : spec_(building.spec), diagnostics_(building.diagnostics), names_(building.names) {
  for (const auto& init : spec_.inits) {
    if (!init.name.value.empty()) inits_.try_emplace(init.name.value, &init.value);
  }
}

void InitBinder::Bind(const Leaf& leaf, const Shape* shape, InitNotes* notes, Tensor* tensor) {
  const TensorSpec& spec = leaf.spec;
  if (!spec.init && spec.wrong.Has("init")) return;
  if (!spec.init) {
    diagnostics_.Error(leaf.place, fmt::format("tensor `{}` has no `init`", tensor->path));
    return;
  }
  // Follow the spec's own names to one of the tool's initializers.
  const InitSpec* init = &*spec.init;
  for (size_t steps = 0;; ++steps) {
    if (notes != nullptr) {
      notes->initializers.push_back({init->name.value, {}, {}, init->name.span});
    }
    const auto it = inits_.find(init->name.value);
    if (it == inits_.end()) break;
    if (steps > inits_.size()) {
      Report(init, [&] {
        diagnostics_.Error(init->name.span,
                           fmt::format("`{}` is defined by itself", init->name.value));
      });
      return;
    }
    if (!init->arguments.empty()) {
      Report(init, [&] {
        diagnostics_.Error(init->arguments[0].name.span,
                           fmt::format("`{}` is an initializer of this spec and takes no arguments",
                                       init->name.value));
      });
      return;
    }
    init = it->second;
  }
  if (bad_inits_.count(init) != 0) return;
  const auto source = shape != nullptr ? BindFans(leaf, *shape, notes, diagnostics_) : std::nullopt;
  const Fans fans = source ? Fans(*shape, *source, init->name.value, spec.init->name.span,
                                  notes != nullptr ? &notes->working : nullptr)
                           : Fans();
  const size_t before = diagnostics_.all().size();
  if (const auto distribution =
          Lower(*init, spec, tensor->dtype, shape, source ? &fans : nullptr, notes)) {
    tensor->distribution = *distribution;
  }
  if (const auto [what, hint] = MisfitOf(tensor->distribution, tensor->dtype); !what.empty()) {
    diagnostics_.Error(init->name.span, fmt::format("values of `{}` {}", tensor->path, what), hint);
  }
  if (diagnostics_.all().size() != before && !fans.reported()) bad_inits_.insert(init);
}

// Reports a mistake in a named initializer once, even if many tensors use it.
template <typename F>
void InitBinder::Report(const InitSpec* init, F report) {
  if (bad_inits_.insert(init).second) report();
}

// `shape` and `fans` are null if they are not known: then only names and arguments are checked.
std::optional<Distribution> InitBinder::Lower(const InitSpec& init, const TensorSpec& tensor,
                                              DType dtype, const Shape* shape, const Fans* fans,
                                              InitNotes* notes) {
  if (init.name.value.empty()) return {};
  if (init.name.value == "file") return LowerFile(init, dtype, shape, notes);
  if (init.name.value == "norms") return LowerNorm(init, notes);
  if (init.name.value == "expr") return LowerExpression(init, tensor, shape, notes);
  const Initializer* initializer = FindInitializer(init.name.value);
  if (initializer == nullptr && MayLack(spec_.inits, spec_.wrong.Has("init"))) return {};
  if (initializer == nullptr) {
    std::vector<std::string> known = InitializerNames();
    for (const auto& named : spec_.inits) known.push_back(named.name.value);
    const std::string hint = DidYouMean(init.name.value, known);
    diagnostics_.Error(init.name.span, fmt::format("unknown initializer `{}`", init.name.value),
                       hint.empty() ? "shardinit-spec(5) lists the initializers" : hint);
    return {};
  }
  std::vector<Argument> arguments;
  bool complete = true;
  bool misspelt = false;
  for (const auto& argument : init.arguments) {
    misspelt |= argument.name.value.empty();
    if (argument.name.value.empty()) continue;
    std::vector<std::string> known;
    for (const Parameter& parameter : initializer->parameters) known.emplace_back(parameter.name);
    if (std::find(known.begin(), known.end(), argument.name.value) != known.end()) continue;
    diagnostics_.Error(
        argument.name.span,
        fmt::format("`{}` has no parameter `{}`", init.name.value, argument.name.value),
        known.empty() ? "it takes none" : DidYouMean(argument.name.value, known));
    misspelt = true;
    if (argument.value && !IsName(*argument.value)) {  // a name may be a word
      EvaluateNumber(*argument.value, names_, diagnostics_);
    }
  }
  complete &= !misspelt;
  for (const Parameter& parameter : initializer->parameters) {
    const auto it = std::find_if(init.arguments.begin(), init.arguments.end(),
                                 [&](const auto& a) { return a.name.value == parameter.name; });
    if (it != init.arguments.end()) {
      const auto argument =
          it->value ? BindArgument(parameter, *it->value, tensor, shape) : std::nullopt;
      complete &= argument.has_value();
      arguments.push_back(argument.value_or(Argument{}));
    } else if (const auto* number = std::get_if<double>(&parameter.default_value)) {
      arguments.push_back({*number, init.name.span});
    } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
      arguments.push_back({0, init.name.span, *word});
    } else if (!misspelt) {  // else the misspelt one was probably meant
      diagnostics_.Error(init.name.span,
                         fmt::format("`{}` needs `{}`", init.name.value, parameter.name),
                         fmt::format("write `{{{}: {{{}: …}}}}`", init.name.value, parameter.name));
      complete = false;
    }
  }
  if (!complete || shape == nullptr || fans == nullptr) return {};
  if (notes != nullptr) notes->arguments = SettingsOf(*initializer, init, arguments);
  if (initializer->formula != nullptr) {
    return LowerFormula(*initializer, arguments, *shape, init.name.span);
  }
  return initializer->lower(arguments, *fans, diagnostics_);
}

// Binds a number, or one of the words that the parameter knows. Words come first; a variable with
// the name of such a word is ambiguous, and is reported.
std::optional<Argument> InitBinder::BindArgument(const Parameter& parameter, const Expr& expr,
                                                 const TensorSpec& tensor, const Shape* shape) {
  const std::string& text = TextOf(expr);
  const Span span = SpanOf(expr);
  const auto word = std::find(parameter.words.begin(), parameter.words.end(), text);
  if (word != parameter.words.end()) {
    if (!parameter.number || !names_.Has(text)) return Argument{0, span, *word};
    diagnostics_.Error(
        span,
        fmt::format("`{}` is a word that `{}` takes, and a variable too", text, parameter.name),
        fmt::format("give the variable another name, or write `1 * {}` for its value", text));
    return {};
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
    diagnostics_.Error(
        span,
        parameter.number
            ? fmt::format("`{}` must be a number or a known word, not `{}`", parameter.name, text)
            : fmt::format("unknown {} `{}`", parameter.name, text),
        DidYouMean(text, known));
    return {};
  }
  const auto value = EvaluateNumber(expr, names_, diagnostics_);
  if (!value) return {};
  return Argument{*value, span};
}

std::optional<Distribution> InitBinder::LowerExpression(const InitSpec& init,
                                                        const TensorSpec& tensor,
                                                        const Shape* shape, InitNotes* notes) {
  if (init.expr == nullptr) {
    diagnostics_.Error(init.name.span, "`expr` needs an expression",
                       "write `{expr: \"where(row >= col, normal() * 0.02, 0)\"}`");
    return {};
  }
  // An expression may also name axes.
  if (shape == nullptr || tensor.wrong.Has("axes")) return {};
  std::vector<std::string> axes;
  if (tensor.axes) {
    for (const auto& name : tensor.axes->value) axes.push_back(name.value);
  }
  if (notes != nullptr) {
    notes->arguments.push_back({"expr", TextOf(*init.expr), {}, SpanOf(*init.expr)});
  }
  return Intern(Compile(*init.expr, *shape, axes, names_, diagnostics_));
}

// Checks only the size of the file; its bytes are checked when they are needed.
std::optional<Distribution> InitBinder::LowerFile(const InitSpec& init, DType dtype,
                                                  const Shape* shape, InitNotes* notes) {
  if (!init.file) {
    diagnostics_.Error(init.name.span, "`file` needs the path of a file",
                       "write `{file: {path: positions.bin, sha256: …}}`");
    return {};
  }
  if (shape == nullptr) return {};
  const auto& [path, sha256] = *init.file;
  try {
    RequireLocal(path.value);
  } catch (const Error& error) {
    diagnostics_.Error(path.span, error.what(), error.hint());
    return {};
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
  const int64_t bytes = ElementCount(*shape) * InfoOf(dtype).bytes;
  if (file->size() < 0) {
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::status(name, ignored))) {
      diagnostics_.Error(path.span, fmt::format("`{}` is no file with bytes to read", name));
      return {};
    }
    diagnostics_.Error(path.span, fmt::format("there is no file `{}`", name),
                       "paths are relative to the file that has them");
    return {};
  }
  if (file->size() != bytes) {
    diagnostics_.Error(
        path.span,
        fmt::format("`{}` has {} bytes, but the elements of [{}] in {} have {}", name, file->size(),
                    fmt::join(*shape, ", "), InfoOf(dtype).name, bytes),
        "such a file has a tensor's elements alone, in its `dtype`");
    return {};
  }
  if (notes != nullptr) {
    notes->arguments.push_back({"path", path.value, {}, path.span});
    notes->arguments.push_back({"sha256", sha256.value, {}, sha256.span});
  }
  return FromFile{sha256.value, file};
}

std::optional<Distribution> InitBinder::LowerNorm(const InitSpec& init, InitNotes* notes) {
  if (!init.of) {
    diagnostics_.Error(init.name.span, "`norms` needs the path of a tensor",
                       "write `{norms: {of: path.of.a.tensor}}`");
    return {};
  }
  if (notes != nullptr) notes->arguments.push_back({"of", init.of->value, {}, init.of->span});
  return Norm{names_.WithNumbers(init.of->value)};
}

std::optional<Distribution> InitBinder::LowerFormula(const Initializer& initializer,
                                                     Arguments arguments, const Shape& shape,
                                                     Span span) {
  const auto formula = initializer.formula(arguments, shape, span, diagnostics_);
  if (!formula) return {};
  class ParameterScope : public Scope {
   public:
    ParameterScope(const Initializer& row, Arguments values) : row_(row), values_(values) {}
    std::optional<Value> Find(const std::string& name, Diagnostics&) const override {
      for (size_t i = 0; i < values_.size(); ++i) {
        if (row_.parameters[i].name == name) return values_[i].value;
      }
      return {};
    }
    std::vector<std::string> Names() const override { return {}; }

   private:
    const Initializer& row_;
    Arguments values_;
  };
  const ExprPtr expr = ParseExpr(*formula, span, diagnostics_);
  Check(expr != nullptr, "a formula that cannot be parsed");
  return Intern(Compile(*expr, shape, {}, ParameterScope(initializer, arguments), diagnostics_));
}

// Shares one program among all layers with the same text.
std::optional<Distribution> InitBinder::Intern(std::shared_ptr<const Program> program) {
  if (program == nullptr) return {};
  return Expression{programs_.try_emplace(program->text, program).first->second};
}

}  // namespace shardinit
