// Shows help on a command, a spec key or another name, from the program's tables.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/complete.h"
#include "commands/names.h"
#include "commands/schema.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/keys.h"

namespace shardinit {
namespace {

using Json = nlohmann::json;

struct HelpOptions {
  explicit HelpOptions(CLI::App& app) {
    app.add_option(
        "NAME", name,
        "A command, a key such as mesh.axes, or a name that `list` shows; default: all topics");
  }

  std::string name;
};

// A mapping in specs. `help` explains its keys, also with the mapping's name: `mesh.axes`.
struct KeyPlace {
  SpecMapping mapping;
  std::string_view name, what, page = "shardinit-spec(5)";
};

constexpr KeyPlace kKeyPlaces[] = {
    {SpecMapping::kModel, "", "the spec"},
    {SpecMapping::kSource, "sources", "a source"},
    {SpecMapping::kAssertion, "assert", "an entry of `assert`"},
    {SpecMapping::kMesh, "mesh", "`mesh`"},
    {SpecMapping::kTraining, "training", "`training`", "shardinit-auto(7)"},
    {SpecMapping::kModule, "module", "a module"},
    {SpecMapping::kTensor, "tensor", "a tensor"},
    {SpecMapping::kShard, "shard", "an entry of `shard`"},
    {SpecMapping::kBlock, "block", "a block"},
    {SpecMapping::kLayout, "layout", "a layout"},
    {SpecMapping::kStoredModule, "stored_module", "a module of a layout"},
    {SpecMapping::kStoredTensor, "stored_tensor", "a stored tensor of a layout"},
    {SpecMapping::kOperation, "operation", "an operation of views"},
};

std::string NameOf(const KeyPlace& place, const SpecKey& key) {
  return place.name.empty() ? std::string(key.name) : fmt::format("{}.{}", place.name, key.name);
}

std::string_view PageOf(const KeyPlace& place, const SpecKey& key) {
  switch (key.kind) {
    case SpecKind::kRules:
    case SpecKind::kSharding:
      return "shardinit-sharding(7)";
    case SpecKind::kTraining:
      return "shardinit-auto(7)";
    case SpecKind::kEngine:
      return "shardinit-values(7)";
    case SpecKind::kInit:
    case SpecKind::kInits:
      return "shardinit-guide-initializer(7)";
    default:
      return place.page;
  }
}

// A help page about one name: a title, a phrase and labelled texts.
struct HelpPage {
  std::string title, phrase;
  std::vector<std::pair<std::string, std::string>> rows;
};

std::string InText(const HelpPage& page) {
  constexpr size_t kWidth = 90, kIndent = 2;
  size_t label = 0;
  for (const auto& [name, text] : page.rows) label = std::max(label, name.size());
  std::string out = page.title + "\n";
  if (!page.phrase.empty()) {
    out += std::string(kIndent, ' ') + Wrapped(page.phrase, kWidth, kIndent) + "\n\n";
  }
  for (const auto& [name, text] : page.rows) {
    out += fmt::format("  {:{}}  {}\n", name, label, Wrapped(text, kWidth, label + 2 * kIndent));
  }
  return out;
}

// The schema of specs, which describes the kinds of values. The tables of keys omit them.
class KindsOfValues {
 public:
  std::string DescriptionOf(SpecKind kind) const {
    const std::string_view name = DefinitionOf(kind);
    return name.empty() ? "" : Definition(name).value("description", "");
  }

  std::vector<std::string> WordsOf(const SpecKey& key) const {
    std::vector<std::string> words(key.words.begin(), key.words.end());
    if (key.kind == SpecKind::kEngine) words = EngineNames();
    const std::string_view name = DefinitionOf(key.kind);
    if (!name.empty()) AddWords(Definition(name), &words);
    return words;
  }

 private:
  const Json& Definition(std::string_view name) const {
    return schema_.at("definitions").at(std::string(name));
  }

  // Adds the words that can be a whole value, but not words within a mapping or a list.
  void AddWords(const Json& schema, std::vector<std::string>* words) const {
    if (schema.contains("$ref")) {
      const std::string reference = schema["$ref"];
      AddWords(Definition(reference.substr(reference.rfind('/') + 1)), words);
    }
    for (const Json& word : schema.value("enum", Json::array())) words->push_back(word);
    for (const char* parts : {"anyOf", "allOf"}) {
      for (const Json& part : schema.value(parts, Json::array())) AddWords(part, words);
    }
  }

  const Json schema_ = Json::parse(SpecSchema());
};

HelpPage PageOfKey(const KeyPlace& place, const SpecKey& key, const KindsOfValues& kinds) {
  HelpPage page = {
      fmt::format("{}: a key of {}{}", key.name, place.what, key.required ? ", required" : ""),
      std::string(key.description),
      {}};
  const auto add = [&](const char* label, std::string text) {
    if (!text.empty()) page.rows.emplace_back(label, std::move(text));
  };
  add("value", kinds.DescriptionOf(key.kind));
  add("words", fmt::to_string(fmt::join(kinds.WordsOf(key), ", ")));
  const std::string_view value =
      key.kind == SpecKind::kEngine ? Engines().front()->name : key.default_text;
  const bool quoted = value.starts_with('"');
  add("default", std::string(quoted ? value.substr(1, value.size() - 2) : value));
  add("form", std::string(key.hint));
  std::string lists;
  for (const KindOfNames& kind : KindsOfNames()) {
    if (kind.key != key.name) continue;
    lists += fmt::format("{}`shardinit help {}`", lists.empty() ? "" : ", ", kind.name);
  }
  add("names", std::move(lists));
  add("page", std::string(PageOf(place, key)));
  return page;
}

HelpPage PageOfName(const KindOfNames& kind, const NameEntry& entry) {
  HelpPage page = {fmt::format("{}: {}", entry.name, kind.one), entry.description, {}};
  page.rows.emplace_back("use", kind.use);
  if (!entry.form.empty()) page.rows.emplace_back("form", entry.form);
  for (const NameArgument& argument : entry.arguments) {
    page.rows.emplace_back(argument.name, argument.default_text.empty()
                                              ? argument.description
                                              : fmt::format("{}; default {}", argument.description,
                                                            argument.default_text));
  }
  page.rows.emplace_back("page", kind.page);
  return page;
}

// Returns the pages of keys with this name; mappings share equal pages. With `by_words`, returns
// the pages of keys that have it as a value, if their values have no pages.
std::vector<HelpPage> PagesOfKeys(const std::string& name, bool by_words,
                                  const KindsOfValues& kinds) {
  std::vector<HelpPage> pages;
  for (const KeyPlace& place : kKeyPlaces) {
    for (const SpecKey& key : KeysOf(place.mapping)) {
      const bool has_pages = std::ranges::any_of(
          KindsOfNames(), [&](const KindOfNames& kind) { return kind.key == key.name; });
      const bool found = by_words ? !has_pages && Contains(kinds.WordsOf(key), name)
                                  : name == key.name || name == NameOf(place, key);
      if (!found) continue;
      HelpPage page = PageOfKey(place, key, kinds);
      const auto same = std::ranges::find_if(pages, [&](const HelpPage& other) {
        return other.phrase == page.phrase && other.rows == page.rows;
      });
      if (same == pages.end()) {
        pages.push_back(std::move(page));
      } else {
        same->title += fmt::format(", of {}", place.what);
      }
    }
  }
  return pages;
}

// Returns whether `name` is the entry's name, or a form such as `init.normal` or `init.normal.std`.
bool IsNameOf(const KindOfNames& kind, const NameEntry& entry, std::string_view name) {
  const std::string prefix = fmt::format("{}.", kind.key);
  if (!kind.key.empty() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (!name.starts_with(entry.name)) return false;
  name.remove_prefix(entry.name.size());
  return name.empty() || (name[0] == '.' && FindNamed(entry.arguments, name.substr(1)) != nullptr);
}

// Returns all names that `help` accepts, for "did you mean".
std::vector<std::string> HelpNames() {
  std::vector<std::string> names = NamesOf(Commands());
  for (const KeyPlace& place : kKeyPlaces) {
    for (const SpecKey& key : KeysOf(place.mapping)) {
      names.emplace_back(key.name);
      names.push_back(NameOf(place, key));
    }
  }
  for (const KindOfNames& kind : KindsOfNames()) {
    names.emplace_back(kind.name);
    for (const NameEntry& entry : kind.entries()) {
      names.push_back(entry.name);
      if (!kind.key.empty()) names.push_back(fmt::format("{}.{}", kind.key, entry.name));
    }
  }
  return names;
}

// Returns the texts about a name; empty for an unknown name.
std::vector<std::string> HelpOn(const std::string& name) {
  std::vector<std::string> texts;
  const auto application = MakeApplication();
  const CLI::App* const command = FindApp(application->app, name);
  if (command != nullptr) texts.push_back(HelpOf(*command));
  const KindsOfValues kinds;
  std::vector<HelpPage> pages = PagesOfKeys(name, false, kinds);
  for (const KindOfNames& kind : KindsOfNames()) {
    for (const NameEntry& entry : kind.entries()) {
      if (IsNameOf(kind, entry, name)) pages.push_back(PageOfName(kind, entry));
    }
  }
  for (HelpPage& page : PagesOfKeys(name, true, kinds)) pages.push_back(std::move(page));
  for (const HelpPage& page : pages) texts.push_back(InText(page));
  for (const KindOfNames& kind : KindsOfNames()) {
    if (kind.name == name) texts.push_back(InText(kind));
  }
  return texts;
}

// Returns the names that `help` accepts.
std::string Overview() {
  HelpPage commands = {"shardinit help COMMAND", "", {}};
  for (const Command* command : Commands()) {
    commands.rows.emplace_back(command->name, command->summary);
  }
  HelpPage keys = {"shardinit help KEY", "", {}};
  for (const KeyPlace& place : kKeyPlaces) {
    std::vector<std::string> names;
    for (const SpecKey& key : KeysOf(place.mapping)) names.push_back(NameOf(place, key));
    keys.rows.emplace_back(fmt::format("of {}", place.what),
                           fmt::to_string(fmt::join(names, ", ")));
  }
  HelpPage names = {"shardinit help NAME", "", {}};
  for (const KindOfNames& kind : KindsOfNames()) {
    names.rows.emplace_back(kind.name, fmt::to_string(fmt::join(NamesOf(kind.entries()), ", ")));
  }
  return InText(commands) + "\n" + InText(keys) + "\n" + InText(names);
}

void RunHelp(const HelpOptions& options) {
  if (options.name.empty()) return Print(Overview());
  const std::vector<std::string> texts = HelpOn(options.name);
  if (texts.empty()) {
    const std::string closest = Closest(options.name, HelpNames());
    throw Usage(fmt::format("no help topic matches {}", Quote(options.name)),
                closest.empty() ? "`shardinit help` shows all topics"
                                : fmt::format("did you mean `{}`?", closest));
  }
  Print(fmt::to_string(fmt::join(texts, "\n")));
}

}  // namespace

extern const Command kHelp = {"help",
                              "Explain a command, a key of specs, an initializer or another name",
                              Configure<RunHelp>};

}  // namespace shardinit
