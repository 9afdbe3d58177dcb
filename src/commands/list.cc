// Lists the names that specs, options and arguments accept, from the tables that the parsers use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/json.h"
#include "base/table.h"
#include "commands/command.h"
#include "commands/names.h"
#include "commands/options.h"

namespace shardinit {
namespace {

struct ListOptions {
  explicit ListOptions(CLI::App& app) {
    const std::string names = fmt::format("{}", fmt::join(NamesOf(KindsOfNames()), "|"));
    app.add_option("KIND", kind, fmt::format("One of {}; default: all of them", names))
        ->type_name(names);
    AddJson(app, &json);
  }

  std::string kind;
  bool json = false;
};

std::string InText(std::span<const KindOfNames> kinds) {
  std::string text;
  for (const KindOfNames& kind : kinds) text += (text.empty() ? "" : "\n") + InText(kind);
  return text;
}

std::string InJson(std::span<const KindOfNames> kinds) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  for (const KindOfNames& kind : kinds) {
    out.Key(kind.name).BeginArray(JsonWriter::kLines);
    for (const NameEntry& entry : kind.entries()) {
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

void RunList(const ListOptions& options) {
  std::span<const KindOfNames> kinds = KindsOfNames();
  const std::vector<std::string> names = NamesOf(kinds);
  if (!options.kind.empty()) {
    kinds = kinds.subspan(ChoiceOf("list", options.kind, {names.begin(), names.end()}), 1);
  }
  Print(options.json ? InJson(kinds) : InText(kinds));
}

}  // namespace

extern const Command kList = {"list",
                              "List the models, shardings, initializers and other names there are",
                              Configure<RunList>};

}  // namespace shardinit
