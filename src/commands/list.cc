// Lists the names that specs, options and arguments may have, from the tables that read them.
#include <fmt/format.h>

#include <vector>

#include "base/json.h"
#include "commands/command.h"
#include "commands/options.h"
#include "expr/functions.h"
#include "formats/format.h"
#include "graph/languages/languages.h"
#include "init/initializer.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

struct Entry {
  std::string name, description;
};

// One kind of names, and where they are written.
struct Kind {
  std::string_view name, use;
  std::vector<Entry> (*entries)();
};

std::vector<Entry> ShippedEntries(std::string_view folder) {
  std::vector<Entry> entries;
  for (ShippedSpec& spec : ShippedIn(folder)) {
    entries.push_back({std::move(spec.name), std::move(spec.title)});
  }
  return entries;
}

// Takes the names and descriptions of a table of pointers to rows.
template <typename Rows>
std::vector<Entry> EntriesOf(const Rows& rows) {
  std::vector<Entry> entries;
  for (const auto* row : rows) {
    entries.push_back({std::string(row->name), std::string(row->description)});
  }
  return entries;
}

std::vector<Entry> EngineEntries() {
  std::vector<Entry> entries;
  for (const Engine* engine : Engines()) {
    entries.push_back({std::string(engine->spec_name()), std::string(engine->source)});
  }
  return entries;
}

// `--sharding torchtitan` names the shipped `sharding/torchtitan`.
std::vector<Entry> ShardingEntries() {
  std::vector<Entry> entries = ShippedEntries(kShippedShardings);
  for (Entry& entry : entries) entry.name.erase(0, kShippedShardings.size());
  return entries;
}

constexpr Kind kKinds[] = {
    {"models", "a SPEC, or a name in `include`", [] { return ShippedEntries(""); }},
    {"recipes", "a name in `include`", [] { return ShippedEntries("recipes/"); }},
    {"shardings", "a value of `--sharding`, or in `include` as `sharding/NAME`", ShardingEntries},
    {"layouts", "a name in `include`", [] { return ShippedEntries("layouts/"); }},
    {"languages", "a value of `sharding`", [] { return EntriesOf(Languages()); }},
    {"initializers", "a value of `init`", [] { return EntriesOf(Initializers()); }},
    {"functions", "in expressions",
     [] {
       std::vector<Entry> entries;
       for (const std::string& name : FunctionNames()) entries.push_back({name, ""});
       return entries;
     }},
    {"engines", "a value of `engine`", EngineEntries},
    {"formats", "a value of `export --to`", [] { return EntriesOf(Formats()); }},
};

struct ListOptions {
  explicit ListOptions(CLI::App& app) {
    std::string names;
    for (const Kind& each : kKinds)
      names += fmt::format("{}{}", names.empty() ? "" : "|", each.name);
    app.add_option("KIND", kind, fmt::format("One of {}; default: all of them", names))
        ->type_name(names);
    AddJson(app, &json);
  }

  std::string kind;
  bool json = false;
};

std::string InText(const std::vector<const Kind*>& kinds) {
  std::string text;
  for (const Kind* kind : kinds) {
    text += fmt::format("{}{}: {}\n", text.empty() ? "" : "\n", kind->name, kind->use);
    std::vector<std::vector<std::string>> rows;
    for (const Entry& entry : kind->entries())
      rows.push_back({"  " + entry.name, entry.description});
    text += Table(rows, {false, false});
  }
  return text;
}

std::string InJson(const std::vector<const Kind*>& kinds) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  for (const Kind* kind : kinds) {
    out.Key(kind->name).BeginArray(JsonWriter::kLines);
    for (const Entry& entry : kind->entries()) {
      out.BeginObject()
          .Member("name", entry.name)
          .Member("description", entry.description)
          .EndObject();
    }
    out.EndArray();
  }
  out.EndObject();
  return out.Finish();
}

ExitCode RunList(const ListOptions& options) {
  std::vector<const Kind*> kinds;
  std::vector<std::string_view> names;
  for (const Kind& kind : kKinds) {
    names.push_back(kind.name);
    kinds.push_back(&kind);
  }
  if (!options.kind.empty()) kinds = {kinds[ChoiceOf("list", options.kind, names)]};
  Print(options.json ? InJson(kinds) : InText(kinds));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kList = {"list",
                              "List the models, shardings, initializers and other names there are",
                              Configure<RunList>};

}  // namespace shardinit
