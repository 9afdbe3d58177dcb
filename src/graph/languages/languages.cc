#include "graph/languages/languages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "graph/languages/rules.h"
#include "graph/stored/store.h"
#include "spec/shipped.h"

namespace shardinit {

extern const LanguageRow kAutoLanguage, kMapLanguage, kRuleLanguage, kHaliaxLanguage, kFsdpLanguage,
    kFirstDivisibleLanguage, kFullyShardLanguage, kMegatronLanguage, kPipelineLanguage;

namespace {

constexpr const LanguageRow* kLanguages[] = {
    &kMapLanguage,        &kRuleLanguage,     &kHaliaxLanguage,
    &kMegatronLanguage,   &kFsdpLanguage,     &kFirstDivisibleLanguage,
    &kFullyShardLanguage, &kPipelineLanguage, &kAutoLanguage,
};

const LanguageRow* FindLanguage(std::string_view name) { return FindNamed(kLanguages, name); }

std::vector<std::string> Words() {
  std::vector<std::string> words;
  for (const LanguageRow* language : kLanguages) {
    if (language->is_word) words.emplace_back(language->name);
  }
  return words;
}

std::string HintForWord(std::string_view word) {
  const std::string shipped = fmt::format("{}{}", kShippedShardings, word);
  if (FindShipped(shipped)) {
    return fmt::format("use the shipped sharding of that name with `include: [{}]`", shipped);
  }
  return DidYouMean(word, Words()) + (Closest(word, Words()).empty()
                                          ? "; the name of a file has a dot or a slash, and "
                                            "`shardinit list shardings` shows the shipped ones"
                                          : "");
}

// Adds the languages of one value of `sharding`: a word, a mapping of languages, or a map of
// patterns.
class StackReader {
 public:
  StackReader(LanguageContext& context, LanguageStack& stack) : context_(context), stack_(stack) {}

  void Read(const Node& value) {
    if (value.IsSequence() && !value.entries.empty()) {
      for (const Node::Entry& item : value.entries) Read(*item.value);
    } else if (value.IsMap() && !value.entries.empty()) {
      ReadMap(value);
    } else if (const LanguageRow* word = value.IsScalar() ? FindLanguage(value.text) : nullptr;
               word != nullptr && word->is_word) {
      Add(*word, {value.span, nullptr});
    } else if (word != nullptr) {
      context_.Error(value.span, fmt::format("`{}` needs arguments", word->name),
                     fmt::format("write `{{{}: …}}`", word->name));
    } else if (value.IsScalar() && value.text.find_first_of("./") != value.text.npos) {
      context_.Error(value.span,
                     fmt::format("a file with a sharding names another one, {}", Quote(value.text)),
                     "name that one instead, or copy its contents here");
    } else if (value.IsScalar()) {
      context_.Error(value.span, fmt::format("unknown sharding {}", Quote(value.text)),
                     HintForWord(value.text));
    } else if (!context_.building.diagnostics.HasErrors()) {
      context_.Error(value.span, "no sharding of tensors is given",
                     "remove `sharding`, or name a file, a word or a language");
    }
  }

 private:
  // Reads a mapping of languages if each key names one, or else a map of patterns.
  void ReadMap(const Node& map) {
    const bool is_of_languages = std::ranges::all_of(map.entries, [](const Node::Entry& entry) {
      return entry.key->text == "uneven" || FindLanguage(entry.key->text) != nullptr;
    });
    if (const Node::Entry* const uneven = map.FindEntry("uneven")) {
      if (stack_.uneven) {
        context_.Error(uneven->key->span, "`uneven` is already in `sharding`",
                       "it applies to all tensors: give it once");
      }
      stack_.uneven = context_.reader.ReadUneven(*uneven);
    }
    if (map.entries.size() == 1 && map.entries[0].key->text == "uneven") {
      context_.Error(map.span, "no sharding of tensors is given",
                     "write `uneven` next to languages or patterns, or at the top of the spec");
      return;
    }
    if (!is_of_languages) return Add(kMapLanguage, {map.span, &map});
    for (const Node::Entry& entry : map.entries) {
      if (entry.key->text == "uneven") continue;
      Add(*FindLanguage(entry.key->text), {entry.key->span, entry.value});
    }
  }

  void Add(const LanguageRow& row, const LanguageText& text) {
    if (auto language = row.read(context_, text)) stack_.languages.push_back(std::move(language));
  }

  LanguageContext& context_;
  LanguageStack& stack_;
};

}  // namespace

std::span<const LanguageRow* const> Languages() { return kLanguages; }

LanguageStack ReadLanguages(Building& building, const Mesh& mesh) {
  const ModelSpec& spec = building.spec;
  LanguageStack stack;
  // Already reported: it is not clear which one is intended.
  if (spec.has_rules && spec.sharding) return stack;
  if (spec.has_rules) {
    stack.languages.push_back(Rules(building, mesh, spec.rules, spec.wrong.Has("rules")));
  }
  if (!spec.sharding) return stack;
  stack.context = std::make_shared<LanguageContext>(building, mesh);
  StackReader(*stack.context, stack).Read(*spec.sharding->root);
  return stack;
}

LanguageContext::LanguageContext(Building& of, const Mesh& over)
    : building(of), mesh(over), names(of.names), reader(false, of.diagnostics) {
  DefineMeshSizes(mesh, &names);
}

std::optional<int64_t> LanguageContext::Integer(const Expr& expr, int64_t low, int64_t high,
                                                std::string_view what) {
  return EvaluateInteger(expr, names, low, high, what, building.diagnostics);
}

std::optional<int64_t> LanguageContext::Integer(const Node::Entry& entry, int64_t low,
                                                int64_t high) {
  const ExprPtr expr = reader.ReadExpr(entry);
  if (expr == nullptr) return {};
  return Integer(*expr, low, high, Quote(entry.key->text));
}

std::vector<int> LanguageContext::Axes(const Node* node, std::string_view fallback, Span place) {
  AxisList list = {{{std::string(fallback), place}}, place};
  if (node != nullptr) list = reader.ReadMeshAxisList(*node);
  std::vector<int> used;
  return BindAxes(list, mesh, &used, building);
}

std::vector<Located<std::string>> LanguageContext::Patterns(const Node::Entry& entry) {
  std::vector<Located<std::string>> patterns;
  const auto add = [&](const Node& node) {
    if (reader.IsText({entry.key, &node})) patterns.push_back(SpecReader::Text(node));
  };
  if (!entry.value->IsSequence()) {
    add(*entry.value);
    return patterns;
  }
  for (const Node::Entry& item : entry.value->entries) add(*item.value);
  return patterns;
}

bool LanguageContext::CheckKeys(const Node& map, std::string_view what,
                                const std::vector<std::string>& keys) {
  if (!map.IsMap()) {
    return Error(map.span, fmt::format("`{}` takes a mapping, not {}", what, Describe(map)),
                 DidYouMean("", keys));
  }
  bool all_known = true;
  for (const Node::Entry& entry : map.entries) {
    if (Contains(keys, entry.key->text)) continue;
    Error(entry.key->span, fmt::format("unknown key {} in `{}`", Quote(entry.key->text), what),
          DidYouMean(entry.key->text, keys));
    all_known = false;
  }
  return all_known;
}

}  // namespace shardinit
