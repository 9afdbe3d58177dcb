// Imports a config.json. One long file, because all steps of the importer share their data.
#include "spec/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <span>

#include "base/embedded.h"
#include "base/error.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "expr/expr.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

constexpr std::string_view kFamilies = "huggingface/", kYaml = ".yaml";

std::string CaptureHint(const Node& config) {
  const std::string& name = config.span.source->name;
  return fmt::format(
      "`shardinit-capture hf {} -o model.yaml` makes a spec of any model of Transformers",
      name.starts_with('<') ? "config.json" : name);
}

// Returns whether `key` is a misspelling of `field`: a typing error, or another way to write
// compound words.
bool IsNearMiss(std::string_view key, std::string_view field) {
  constexpr size_t kLong = 12;
  const auto plain = [](std::string_view name) {
    std::string letters = Lower(name);
    std::erase_if(letters, [](char c) { return c == '_' || c == '-'; });
    return letters;
  };
  const size_t slips = field.size() < kLong ? 1 : 2;
  return plain(key) == plain(field) || EditDistance(key, field, slips) <= slips;
}

// Returns the model types that have a family; `_all.yaml` is not one.
std::vector<std::string> ModelTypes() {
  std::vector<std::string> types;
  for (const EmbeddedFile& file : ShippedFiles()) {
    if (!file.path.starts_with(kFamilies)) continue;
    std::string_view name = file.path.substr(kFamilies.size());
    name.remove_suffix(kYaml.size());
    if (!name.starts_with('_')) types.emplace_back(name);
  }
  return types;
}

template <typename T>
std::optional<T> NumberIn(const Node& node) {
  return node.IsScalar() && !node.quoted ? ParseNumber<T>(node.text) : std::nullopt;
}

// Returns the type of a JSON value, as in a family's `types`. Transformers writes infinity as
// `{"__float__": "Infinity"}`.
std::string TypeOf(const Node& node) {
  if (node.IsNull()) return "null";
  if (node.IsMap()) {
    const bool is_float = node.entries.size() == 1 && node.entries[0].key->text == "__float__";
    const auto is_label = [](const Node::Entry& entry) {
      return ParseNumber<int64_t>(entry.key->text).has_value();
    };
    return is_float ? "float" : std::ranges::all_of(node.entries, is_label) ? "label_map" : "map";
  }
  if (node.IsSequence()) {
    std::string items;
    for (const Node::Entry& entry : node.entries) {
      const std::string item = TypeOf(*entry.value);
      if (!items.empty() && item != items) return "list";
      items = item;
    }
    return fmt::format("{}s", items);
  }
  if (node.quoted) return "text";
  if (node.text == "true" || node.text == "false") return "bool";
  return node.text.find_first_of(".eENI") == node.text.npos ? "int" : "float";
}

// The same types in words.
constexpr std::pair<std::string_view, std::string_view> kTypeWords[] = {
    {"bool", "true or false"},
    {"int", "a whole number"},
    {"float", "a number with a decimal point"},
    {"text", "text"},
    {"map", "an object"},
    {"label_map", "an object with whole numbers as names"},
    {"ints", "a list of whole numbers"},
    {"floats", "a list of numbers with decimal points"},
    {"texts", "a list of texts"},
    {"null", "null"},
};

const Node* Member(const Node* map, std::string_view key) {
  const Node* value = map == nullptr || !map->IsMap() ? nullptr : map->Find(key);
  return value == nullptr || value->IsNull() ? nullptr : value;
}

// Finds the entry of a table for a JSON value. Only true, false and null are unquoted.
const Node* ValueFor(const Node* values, const Node& given) {
  if (!given.IsScalar()) return nullptr;
  const bool is_word = given.text == "true" || given.text == "false" || given.text == "null";
  return given.quoted == is_word ? nullptr : Member(values, given.text);
}

std::span<const Node::Entry> EntriesOf(const Node* node) {
  return node == nullptr ? std::span<const Node::Entry>() : node->entries;
}

// Holds the variables that are known before there is a spec. Errors are found later.
class Variables : public Scope {
 public:
  void Add(const Node* vars) {
    for (const auto& [name, value] : EntriesOf(vars)) values_[std::string(name->text)] = value;
  }

  std::optional<Value> Find(const std::string& name, Diagnostics& unused) const override {
    const auto found = values_.find(name);
    if (found == values_.end() || depth_ > kDeepest) return {};
    ++depth_;
    const std::optional<Value> value = Compute(*found->second, unused);
    --depth_;
    return value;
  }

  std::optional<Value> Compute(const Node& node, Diagnostics& unused) const {
    if (!node.IsScalar()) return {};
    const ExprPtr expr = ParseExpr(node.text, node.span, unused);
    return expr == nullptr ? std::nullopt : Evaluate(*expr, *this, unused);
  }

 private:
  static constexpr int kDeepest = 16;
  std::map<std::string, const Node*> values_;
  mutable int depth_ = 0;
};

std::string DescribeNumber(const Node& given) {
  return (given.quoted ? "the text " : "") + Describe(given);
}

// Checks the parts of a config.json that Transformers reads.
class ConfigChecks {
 public:
  // `types` is the family's table of the types of fields; null: do not check types.
  ConfigChecks(const Node& config, const Node* types, Diagnostics& diagnostics)
      : config_(config), types_(types), diagnostics_(diagnostics) {}

  // Reports a value whose type Transformers does not accept for `field`. The file calls it `name`.
  bool HasType(std::string_view field, std::string_view name, const Node& given) {
    const Node* types = Member(types_, field);
    if (types == nullptr) return true;
    const std::string type = TypeOf(given);
    std::vector<std::string_view> words;
    for (std::string_view rest = types->text; !rest.empty();) {
      const std::string_view known = rest.substr(0, rest.find('|'));
      rest.remove_prefix(std::min(rest.size(), known.size() + 1));
      // The type of an empty list is `s`.
      if (known == type || (type == "s" && known.ends_with('s'))) return true;
      if (known == "map" && type == "label_map") return true;
      const auto* word = std::ranges::find(kTypeWords, known, [](auto& row) { return row.first; });
      Check(word != std::end(kTypeWords), "`types` of a family has types");
      words.push_back(word->second);
    }
    return diagnostics_.Error(
        given.span, fmt::format("{} must be {}, but is {}", Quote(name), fmt::join(words, " or "),
                                given.IsNull() ? "null" : DescribeNumber(given)));
  }

  // Reports sizes that appear only in a nested object, and a file without any size. The model would
  // get Transformers' defaults.
  void ReportUnreadSizes(const Node& fields) {
    std::vector<std::string> sizes;
    bool is_read = false;
    for (const Node::Entry& field : fields.entries) {
      const Node* text = Member(field.value, "default");
      if (Member(field.value, "var") == nullptr || Member(field.value, "real") != nullptr ||
          Member(field.value, "least") != nullptr || Member(field.value, "count") != nullptr)
        continue;
      const Node* alias = Member(field.value, "alias");
      const auto find = [&](const Node& map) {
        const Node* value = map.Find(field.key->text);
        return value != nullptr || alias == nullptr ? value : map.Find(alias->text);
      };
      if (find(config_) != nullptr) {
        is_read = true;
        continue;
      }
      sizes.push_back(Quote(field.key->text));
      if (text == nullptr || !NumberIn<int64_t>(*text)) continue;
      for (const Node::Entry& entry : config_.entries) {
        const Node* value = entry.value->IsMap() ? find(*entry.value) : nullptr;
        if (value == nullptr) continue;
        diagnostics_.Error(
            value->span,
            fmt::format("{} is in {}, where a {} ignores it", Quote(field.key->text),
                        Quote(entry.key->text), Quote(config_.Find("model_type")->text)),
            fmt::format("import the object of {} as a config.json of its own, with its own "
                        "`model_type`",
                        Quote(entry.key->text)));
        is_read = true;
      }
    }
    if (is_read) return;
    diagnostics_.Error({config_.span.source, 0, 0, 0},
                       "the config.json has none of the model's sizes",
                       fmt::format("its sizes are {}", fmt::join(sizes, ", ")));
  }

  // Checks lists with one entry per layer, as Transformers does for every model.
  void CheckLayerLists(const Node* lists, const Variables& variables) {
    Diagnostics unused;
    const std::optional<Value> layers = variables.Find("layers", unused);
    for (const auto& [name, words] : EntriesOf(lists)) {
      const Node* given = Member(&config_, name->text);
      if (given == nullptr || !HasType(name->text, name->text, *given)) continue;
      for (const Node::Entry& item : given->entries) {
        const bool is_known =
            words->entries.empty() || std::ranges::any_of(words->entries, [&](const auto& word) {
              return word.value->text == item.value->text;
            });
        if (is_known) continue;
        std::vector<std::string_view> known;
        for (const Node::Entry& word : words->entries) known.push_back(word.value->text);
        diagnostics_.Error(item.value->span,
                           fmt::format("{} has {}, which is not a type of layer", Quote(name->text),
                                       Describe(*item.value)),
                           fmt::format("the types are `{}`", fmt::join(known, "`, `")));
        break;
      }
      const auto count = static_cast<int64_t>(given->entries.size());
      if (!layers || !std::holds_alternative<int64_t>(*layers) ||
          std::get<int64_t>(*layers) == count)
        continue;
      diagnostics_.Error(given->span,
                         fmt::format("{} must have an entry for each of the {} layers, but has {}",
                                     Quote(name->text), std::get<int64_t>(*layers), count));
    }
  }

  // Reports keys that are close to a field. Transformers silently ignores such a key and uses the
  // default of the intended field.
  void ReportNearMisses(const Node& fields, const Node* no_tensor) {
    std::vector<std::string_view> known, absent;
    for (const Node::Entry& field : EntriesOf(no_tensor)) {
      const std::string_view name = field.value->text;
      (config_.Find(name) != nullptr ? known : absent).push_back(name);
    }
    for (const Node::Entry& field : fields.entries) {
      if (!field.value->IsMap()) continue;
      const Node* alias = Member(field.value, "alias");
      const bool is_given = config_.Find(field.key->text) != nullptr ||
                            (alias != nullptr && config_.Find(alias->text) != nullptr);
      for (const std::string_view name :
           {field.key->text, alias == nullptr ? std::string_view() : alias->text}) {
        (is_given ? known : absent).push_back(name);
      }
    }
    for (const Node::Entry& entry : config_.entries) {
      const std::string_view key = entry.key->text;
      if (Contains(known, key)) continue;
      std::vector<std::string_view> near;
      std::ranges::copy_if(absent, std::back_inserter(near), [key](std::string_view field) {
        return !field.empty() && IsNearMiss(key, field);
      });
      if (near.empty()) continue;
      const auto meant = std::ranges::min_element(near, {}, [key](std::string_view field) {
        return EditDistance(key, field, field.size());
      });
      diagnostics_.Error(
          entry.key->span,
          fmt::format("{} is not a field of a {}, and {} is not there", Quote(key),
                      Quote(config_.Find("model_type")->text), Quote(*meant)),
          fmt::format("did you mean {}? If not, remove it: Transformers does not read it",
                      Quote(*meant)));
    }
  }

 private:
  const Node& config_;
  const Node* const types_;
  Diagnostics& diagnostics_;
};

class Importer {
 public:
  Importer(const Node& config, const Node& family, NodeStore& store, Diagnostics& diagnostics)
      : config_(config),
        family_(family),
        store_(store),
        diagnostics_(diagnostics),
        checks_(config, Member(Member(&family, "config_json"), "types"), diagnostics) {}

  ImportedConfig Import() {
    const Node* table = Member(&family_, "config_json");
    const Node* fields = Member(table, "fields");
    Check(fields != nullptr, "the file of a family has `config_json: {fields: …}`");
    const Node& type = *config_.Find("model_type");
    Node* spec = NewMap();
    Add(spec, "shardinit", store_.NewScalar("1", type.span));
    Add(spec, "include", NewText(FamilyFile(type.text), type.span));
    Add(spec, "name", &type);
    vars_ = NewMap();
    parts_ = {spec};
    for (const Node::Entry& field : fields->entries) {
      if (field.value->IsMap()) ReadField(std::string(field.key->text), *field.value);
    }
    for (const std::string_view list : {"no_tensor", "any_model"}) {
      for (const Node::Entry& field : EntriesOf(Member(table, list))) {
        const Node* given = config_.Find(field.value->text);
        if (given != nullptr) checks_.HasType(field.value->text, field.value->text, *given);
      }
    }
    checks_.ReportNearMisses(*fields, Member(table, "no_tensor"));
    checks_.ReportUnreadSizes(*fields);
    Add(spec, "vars", vars_);
    Node* last = NewMap();
    Add(last, "config", WriteConfig(fields, Member(table, "omit")));
    parts_.push_back(last);
    variables_.Add(Member(&family_, "vars"));
    for (const Node* part : parts_) variables_.Add(Member(part, "vars"));
    checks_.CheckLayerLists(Member(table, "layer_lists"), variables_);
    Require(Member(table, "require"));
    return {parts_, defaults_};
  }

 private:
  Node* NewMap() { return store_.New(Node::Kind::kMap, {config_.span.source, 0, 0, 0}); }
  Node* NewText(std::string text, Span span) {
    Node* scalar = store_.NewScalar(store_.Keep(std::move(text)), span);
    scalar->quoted = true;
    return scalar;
  }
  void Add(Node* map, std::string_view key, const Node* value) {
    map->entries.push_back({store_.NewScalar(store_.Keep(std::string(key)), value->span), value});
    map->Enclose(*value);
  }
  void SetVariable(const Node& variable, const Node* value, const std::string& field,
                   const Node* given) {
    const std::string name(variable.text);
    const auto before = named_.find(name);
    if (before != named_.end() && before->second.second != nullptr && given != nullptr) {
      const Node* const earlier = vars_->Find(name);
      if (earlier->text != value->text) {
        diagnostics_.Error(given->span,
                           fmt::format("{} says {}, but {} says {}", Quote(field), value->text,
                                       Quote(before->second.first), earlier->text),
                           "remove the one that is wrong");
      }
    }
    std::erase_if(vars_->entries, [&](const Node::Entry& e) { return e.key->text == name; });
    Add(vars_, name, value);
    named_[name] = {field, given};
  }

  // Adds the part of the spec for a value in the table.
  void AddPart(const Node* part) {
    if (part != nullptr && part->IsMap() && !part->entries.empty()) parts_.push_back(part);
  }

  // Reports an alias of `field` if Transformers derives the field `needed` only from `field`
  // itself.
  void RejectUnsuitableAlias(const std::string& alias, const Node& given, const Node* needed,
                             const std::string& field) {
    if (needed == nullptr || given.IsNull() || Member(&config_, needed->text) != nullptr) return;
    diagnostics_.Error(
        given.span,
        fmt::format("{} is another name of {}, but Transformers does not take {} "
                    "from it",
                    Quote(alias), Quote(field), Quote(needed->text)),
        fmt::format("write {} instead, or give {} too", Quote(field), Quote(needed->text)));
  }

  void ReadField(const std::string& field, const Node& row) {
    std::string name = field;
    const Node* alias = Member(&row, "alias");
    const Node* given = config_.Find(name);
    if (const Node* other = alias == nullptr ? nullptr : config_.Find(alias->text)) {
      if (given == nullptr || given->IsNull()) {
        given = other;
        name = alias->text;
        RejectUnsuitableAlias(name, *other, Member(&row, "alias_needs"), field);
      } else if (!other->IsNull() && (!given->IsScalar() || given->text != other->text)) {
        diagnostics_.Error(
            other->span,
            fmt::format("{} is {}, but {}, which is another name of it, is {}", Quote(name),
                        Describe(*given), Quote(alias->text), Describe(*other)),
            "remove the one that is wrong");
      } else {
        repeated_.push_back(alias->text);
      }
    }
    const Node* values = Member(&row, "values");
    const Node* variable = Member(&row, "var");
    const bool is_empty = given != nullptr && !given->IsScalar() && given->entries.empty();
    if (given != nullptr && (variable == nullptr || given->IsNull() || is_empty) &&
        !checks_.HasType(field, name, *given))
      return;
    if (given != nullptr) given = &Unwrapped(*given, name, row);
    if (given != nullptr && (given->IsNull() || is_empty) && Member(values, "null") != nullptr) {
      AddPart(values->Find("null"));
      return;
    }
    // An empty list has no item to take, so treat it as null.
    if (given == nullptr || given->IsNull() || (is_empty && Member(&row, "first") != nullptr)) {
      const Node* text = Member(&row, "default");
      if (text == nullptr) return;
      defaults_.emplace_back(field, text->text);
      if (const Node* part = Member(values, text->text)) {
        AddPart(part);
      } else {
        SetVariable(*variable, text, name, given);
        AddPart(Member(&row, "spec"));
      }
      return;
    }
    if (const Node* part = ValueFor(values, *given)) {
      AddPart(part);
    } else if (variable == nullptr) {
      ReportValue(name, *given, row, *values);
    } else if (const Node* number = ReadNumber(field, name, *given, row)) {
      SetVariable(*variable, number, name, given);
      AddPart(Member(&row, "spec"));
    }
  }

  // Returns the single value in a field's list, object or prefixed name.
  const Node& Unwrapped(const Node& given, const std::string& name, const Node& row) {
    if (given.IsSequence() && !given.entries.empty() && Member(&row, "first") != nullptr) {
      const Node& first = *given.entries[0].value;
      if (given.entries.size() > 1 && first.IsScalar()) {
        diagnostics_.Warning(given.span,
                             fmt::format("{} names {} classes; the first one, {}, is used",
                                         Quote(name), given.entries.size(), Describe(first)),
                             "keep only the intended one");
      }
      return first;
    }
    if (given.IsMap() && given.entries.size() == 1 && given.entries[0].key->text.empty())
      return Unwrapped(*given.entries[0].value, name, row);  // composite models write `{"": …}`
    const Node* prefix = Member(&row, "prefix");
    if (prefix == nullptr || !given.IsScalar() || !given.text.starts_with(prefix->text))
      return given;
    Node* plain = store_.Copy(given);
    plain->text.remove_prefix(prefix->text.size());
    return *plain;
  }

  const Node* ReadNumber(const std::string& field, const std::string& name, const Node& given,
                         const Node& row) {
    if (Member(&row, "count") != nullptr) {
      if (!given.IsScalar())
        return store_.NewScalar(store_.Keep(std::to_string(given.entries.size())), given.span);
      return diagnostics_.Error(given.span, fmt::format("{} must be an object or a list, not {}",
                                                        Quote(name), Describe(given)));
    }
    if (Member(&row, "real") != nullptr) {
      const std::optional<double> number = NumberIn<double>(given);
      if (number && *number > 0 && std::isfinite(*number))
        return checks_.HasType(field, name, given) ? &given : nullptr;
      return diagnostics_.Error(given.span, fmt::format("{} must be a number above 0, not {}",
                                                        Quote(name), DescribeNumber(given)));
    }
    const Node* least = Member(&row, "least");
    const int64_t lowest = least == nullptr ? 1 : NumberIn<int64_t>(*least).value();
    const std::optional<int64_t> number = NumberIn<int64_t>(given);
    if (number && *number >= lowest) return &given;
    return diagnostics_.Error(
        given.span, fmt::format("{} must be a whole number of at least {}, not {}", Quote(name),
                                lowest, DescribeNumber(given)));
  }

  void ReportValue(const std::string& name, const Node& given, const Node& row,
                   const Node& values) {
    std::vector<std::string> known;
    for (const Node::Entry& value : values.entries) {
      if (!value.value->IsNull()) known.emplace_back(value.key->text);
    }
    const Node* hint = Member(&row, "hint");
    diagnostics_.Error(given.span,
                       fmt::format("{} is {}, which the family {} has no tensors for", Quote(name),
                                   Describe(given), Quote(config_.Find("model_type")->text)),
                       hint != nullptr ? std::string(hint->text)
                                       : fmt::format("it knows `{}`; {}", fmt::join(known, "`, `"),
                                                     CaptureHint(config_)));
  }

  // Writes fields as references to variables, so that `config` stays correct if the variables
  // change. Other fields are copied.
  const Node* WriteConfig(const Node* fields, const Node* omit) {
    Node* config = NewMap();
    std::vector<std::string_view> written = repeated_;
    for (const Node::Entry& field : EntriesOf(omit)) written.push_back(field.value->text);
    for (const Node::Entry& var : vars_->entries) {
      const auto& [field, given] = named_.at(std::string(var.key->text));
      // A variable that counts the entries of a field belongs to another field, if any.
      const bool counts = given != nullptr && !given->IsNull() && !given->IsScalar();
      const Node* row = counts ? Member(fields, field) : nullptr;
      const std::string_view name = counts ? Member(row, "count")->text : std::string_view(field);
      Add(config, name,
          store_.NewScalar(store_.Keep(fmt::format("={}", var.key->text)), var.value->span));
      written.push_back(store_.Keep(std::string(name)));
    }
    for (const Node::Entry& entry : config_.entries) {
      if (!Contains(written, entry.key->text))
        Add(config, entry.key->text, ConfigValue(*entry.value));
    }
    std::ranges::sort(config->entries,
                      [](const auto& a, const auto& b) { return a.key->text < b.key->text; });
    return config;
  }

  // Writes integers beyond 64 bits as floats, NaN and infinities as Transformers' `__float__`, and
  // adds a `=` to text that begins with `=`.
  const Node* ConfigValue(const Node& node) {
    if (node.IsNull()) return &node;
    if (!node.IsScalar()) {
      Node* copy = store_.Copy(node);
      for (Node::Entry& entry : copy->entries) {
        entry.value = ConfigValue(*entry.value);
        copy->Enclose(*entry.value);
      }
      return copy;
    }
    if (node.quoted) {
      return node.text.starts_with('=') ? NewText(fmt::format("={}", node.text), node.span) : &node;
    }
    if (node.text == "NaN" || node.text.ends_with("Infinity")) {
      Node* map = NewMap();
      Add(map, "__float__", NewText(std::string(node.text), node.span));
      return map;
    }
    const bool is_whole = node.text.find_first_not_of("-0123456789") == node.text.npos;
    if (!is_whole || NumberIn<int64_t>(node) || NumberIn<uint64_t>(node)) return &node;
    return store_.NewScalar(store_.Keep(fmt::format("{}.0", node.text)), node.span);
  }

  // Reports the requirements in the table, and the assertions in the family's spec, that the fields
  // do not satisfy.
  void Require(const Node* sentences) {
    for (const auto& [sentence, that] : EntriesOf(sentences)) {
      if (!that->IsNull())
        Require(fmt::format("the model needs that {}", sentence->text), ", but ", *that);
    }
    for (const Node::Entry& entry : EntriesOf(Member(&family_, "assert"))) {
      const Node* that = Member(entry.value, "that");
      const Node* message = Member(entry.value, "message");
      const Node& expression = that == nullptr ? *entry.value : *that;
      Require(message == nullptr ? fmt::format("{} does not hold", Quote(expression.text))
                                 : std::string(message->text),
              ": ", expression);
    }
  }

  // `joint` separates the message from the values.
  void Require(const std::string& message, std::string_view joint, const Node& that) {
    Diagnostics unused;
    const ExprPtr expr = that.IsScalar() ? ParseExpr(that.text, that.span, unused) : nullptr;
    const auto value = expr == nullptr ? std::nullopt : Evaluate(*expr, variables_, unused);
    if (!value || std::visit([](auto number) { return number != 0; }, *value)) return;
    std::vector<std::string> said;
    Span span = {config_.span.source, 0, 0, 0};
    for (const std::string& name : NamesIn(*expr)) {
      const auto field = named_.find(name);
      if (field == named_.end() || field->second.second == nullptr) continue;
      said.push_back(
          fmt::format("`{}` is {}", field->second.first, Describe(*field->second.second)));
      if (span.line == 0) span = field->second.second->span;
    }
    diagnostics_.Error(
        span, fmt::format("{}{}{}", message, said.empty() ? "" : joint, fmt::join(said, " and ")));
  }

  const Node& config_;
  const Node& family_;
  NodeStore& store_;
  Diagnostics& diagnostics_;
  ConfigChecks checks_;
  std::vector<const Node*> parts_;
  FieldDefaults defaults_;
  // Other names of fields that the file also contains, with the same value.
  std::vector<std::string_view> repeated_;
  Node* vars_ = nullptr;
  Variables variables_;
  // By variable: its field, and the field's value, which is null if absent.
  std::map<std::string, std::pair<std::string, const Node*>> named_;
};

}  // namespace

bool IsConfigJson(const Node& root) {
  return root.IsMap() && root.Find("shardinit") == nullptr &&
         (root.Find("model_type") != nullptr || root.Find("architectures") != nullptr);
}

const Node* FindModelType(const Node& config, Diagnostics& diagnostics) {
  const Node* type = config.Find("model_type");
  const std::vector<std::string> types = ModelTypes();
  const std::string known = fmt::format("`{}`", fmt::join(types, "`, `"));
  if (type == nullptr || !type->IsScalar()) {
    return diagnostics.Error(type == nullptr ? Span{config.span.source, 0, 0, 0} : type->span,
                             type == nullptr
                                 ? "`model_type`, the name of the family, is missing"
                                 : fmt::format("`model_type` is a name, not {}", Describe(*type)),
                             fmt::format("one of {}", known));
  }
  if (Contains(types, type->text)) return type;
  const std::string closest = Closest(type->text, types);
  return diagnostics.Error(
      type->span, fmt::format("no family has the model type {}", Quote(type->text)),
      fmt::format("{}there are {}; {}",
                  closest.empty() ? "" : fmt::format("did you mean `{}`? ", closest), known,
                  CaptureHint(config)));
}

std::string FamilyFile(std::string_view model_type) {
  return fmt::format("{}/{}{}{}", kShippedFolder, kFamilies, model_type, kYaml);
}

ImportedConfig ImportConfig(const Node& config, const Node& family, NodeStore& store,
                            Diagnostics& diagnostics) {
  return Importer(config, family, store, diagnostics).Import();
}

}  // namespace shardinit
