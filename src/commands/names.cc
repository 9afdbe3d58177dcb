#include "commands/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <variant>

#include "expr/functions.h"
#include "formats/format.h"
#include "graph/languages/languages.h"
#include "graph/stored/view.h"
#include "init/initializer.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

std::vector<NameEntry> ShippedEntries(std::string_view folder) {
  std::vector<NameEntry> entries;
  for (ShippedSpec& spec : ShippedIn(folder)) {
    entries.push_back({std::move(spec.name), std::move(spec.title)});
  }
  return entries;
}

// `--sharding torchtitan` names the shipped `sharding/torchtitan`.
std::vector<NameEntry> ShardingEntries() {
  std::vector<NameEntry> entries = ShippedEntries(kShippedShardings);
  for (NameEntry& entry : entries) entry.name.erase(0, kShippedShardings.size());
  return entries;
}

// Returns the names and descriptions in a table of pointers to rows.
template <typename Rows>
std::vector<NameEntry> EntriesOf(const Rows& rows) {
  std::vector<NameEntry> entries;
  for (const auto* row : rows) {
    entries.push_back({std::string(row->name), std::string(row->description)});
  }
  return entries;
}

std::vector<NameEntry> EngineEntries() {
  std::vector<NameEntry> entries;
  for (const Engine* engine : Engines()) {
    entries.push_back({std::string(engine->spec_name()), std::string(engine->source)});
  }
  return entries;
}

// Returns `{normal: {std: …}}`, with the required arguments.
std::string FormOf(std::string_view name, const std::vector<NameArgument>& arguments,
                   std::string_view more = {}) {
  std::string given;
  for (const NameArgument& argument : arguments) {
    if (argument.default_text.empty()) given += fmt::format("{}: …, ", argument.name);
  }
  given += more;
  if (given.ends_with(", ")) given.resize(given.size() - 2);
  return given.empty() ? std::string(name) : fmt::format("{{{}: {{{}}}}}", name, given);
}

std::vector<NameEntry> InitializerEntries() {
  std::vector<NameEntry> entries = EntriesOf(Initializers());
  for (NameEntry& entry : entries) {
    for (const Parameter& parameter : FindInitializer(entry.name)->parameters) {
      std::string what(parameter.description);
      if (!parameter.words.empty() && !parameter.dimension) {
        what += fmt::format(": {}{}", parameter.number ? "a number or " : "",
                            fmt::join(parameter.words, ", "));
      }
      std::string value;
      if (const auto* number = std::get_if<double>(&parameter.default_value)) {
        value = fmt::to_string(*number);
      } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
        value = *word;
      }
      entry.arguments.push_back({std::string(parameter.name), std::move(what), std::move(value)});
    }
    entry.form = fmt::format("init: {}", FormOf(entry.name, entry.arguments));
  }
  return entries;
}

std::vector<NameEntry> OperationEntries() {
  std::vector<NameEntry> entries;
  for (const ViewOperation& operation : ViewOperations()) {
    NameEntry entry = {std::string(operation.name), std::string(operation.description)};
    for (const ViewParameter& parameter : operation.parameters) {
      std::string value;
      if (parameter.default_value) {
        if (const auto* integer = std::get_if<int64_t>(&*parameter.default_value)) {
          value = fmt::to_string(*integer);
        } else if (const auto* number = std::get_if<double>(&*parameter.default_value)) {
          value = fmt::to_string(*number);
        } else {
          value = "the operation's own";
        }
      }
      entry.arguments.push_back(
          {std::string(parameter.name), std::string(parameter.description), std::move(value)});
    }
    entry.form = fmt::format("from: {}", FormOf(operation.name, entry.arguments,
                                                operation.many ? "of: [PATH, …]" : "of: PATH"));
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string FormOf(const Function& function) {
  std::vector<std::string> arguments;
  for (int i = 0; i < function.least_arguments; ++i) {
    arguments.emplace_back(1, static_cast<char>('a' + i));
  }
  if (function.most_arguments < 0) arguments.emplace_back("...");
  return fmt::format("{}({})", function.name, fmt::join(arguments, ", "));
}

std::vector<NameEntry> FunctionEntries() {
  std::vector<NameEntry> entries;
  for (const std::string& name : FunctionNames()) {
    const Function& function = *FindFunction(name);
    NameEntry entry = {name, std::string(function.description), FormOf(function)};
    if (function.placed != nullptr) {
      const PlacedFunction& placed = *function.placed;
      if (placed.dtype != DType::f32) {
        entry.description += fmt::format(", drawn in {}", InfoOf(placed.dtype).name);
      }
      for (size_t i = 0; i < placed.arguments.size(); ++i) {
        entry.arguments.push_back({std::string(1, static_cast<char>('a' + i)),
                                   std::string(placed.arguments[i].name), ""});
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

constexpr KindOfNames kKinds[] = {
    {"models", "a model that is shipped", "a SPEC, or a name in `include`", "include",
     "shardinit-models(7)", [] { return ShippedEntries(""); }},
    {"recipes", "initializers of another program, which are shipped", "a name in `include`",
     "include", "shardinit-models(7)", [] { return ShippedEntries("recipes/"); }},
    {"shardings", "how a trainer shards a model, which is shipped",
     "a value of `--sharding`, or in `include` as `sharding/NAME`", "sharding",
     "shardinit-sharding(7)", ShardingEntries},
    {"layouts", "how a trainer stores a model, which is shipped", "a name in `include`", "include",
     "shardinit-models(7)", [] { return ShippedEntries("layouts/"); }},
    {"languages", "a language of `sharding`", "a value of `sharding`", "sharding",
     "shardinit-sharding(7)", [] { return EntriesOf(Languages()); }},
    {"initializers", "an initializer", "a value of `init`", "init",
     "shardinit-guide-initializer(7)", InitializerEntries},
    {"functions", "a function", "in expressions", "", "shardinit-spec(5)", FunctionEntries},
    {"operations", "an operation of views", "a value of `from`, in layouts", "from",
     "shardinit-spec(5)", OperationEntries},
    {"engines", "a random generator", "a value of `engine`", "engine", "shardinit-values(7)",
     EngineEntries},
    {"formats", "a format of files", "a value of `export --to`", "to", "shardinit-export(1)",
     [] { return EntriesOf(Formats()); }},
};

}  // namespace

std::span<const KindOfNames> KindsOfNames() { return kKinds; }

std::string InText(const KindOfNames& kind) {
  std::vector<std::vector<std::string>> rows;
  for (const NameEntry& entry : kind.entries()) {
    rows.push_back({"  " + entry.name, entry.description});
  }
  return fmt::format("{}: {}\n{}", kind.name, kind.use, Table(rows, {false, false}));
}

std::vector<std::string> FunctionPhrases() {
  std::vector<std::string> phrases;
  for (const std::string& name : FunctionNames()) {
    const Function& function = *FindFunction(name);
    if (function.placed == nullptr) {
      phrases.push_back(fmt::format("{}, {}", FormOf(function), function.description));
    }
  }
  return phrases;
}

}  // namespace shardinit
