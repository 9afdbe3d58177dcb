#include "spec/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <string_view>

#include "base/suggest.h"
#include "base/text.h"
#include "spec/include.h"
#include "spec/names.h"
#include "spec/override.h"
#include "spec/yaml.h"

namespace shardinit {
namespace {

const std::vector<std::string> kUnevenPolicies = {"error", "chunk"};
const std::vector<std::string> kFanOrders = {"out_in", "in_out"};
const std::vector<std::string> kReplicaPolicies = {"dedupe", "full"};
constexpr int kConfigDepth = 16;  // Of 32 that a plan may have.
// Entries of lists that each tensor is held against.
constexpr size_t kMostRules = 1000;

// A plain scalar that YAML reads as something other than text.
bool IsBoolean(const Node& node) {
  return node.IsScalar() && !node.quoted && (node.text == "true" || node.text == "false");
}

bool IsNumberText(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const size_t digit = text.starts_with('.') ? 1 : 0;
  if (text.size() <= digit || text[digit] < '0' || text[digit] > '9') {
    return false;
  }
  double unused;
  const char* end = text.data() + text.size();
  return text.starts_with("0x") || std::from_chars(text.data(), end, unused).ptr == end;
}

bool IsDigits(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Of digits alone, below 2^64.
std::optional<uint64_t> Natural(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return stop == end && error == std::errc() ? std::optional(value) : std::nullopt;
}

bool IsNumber(const Node& node) {
  return node.IsScalar() && !node.quoted && IsNumberText(node.text);
}

// Opening minus closing parentheses of an unquoted scalar.
int OpenParentheses(const Node& node) {
  if (!node.IsScalar() || node.quoted) return 0;
  const std::string_view text = node.text;
  return std::count(text.begin(), text.end(), '(') - std::count(text.begin(), text.end(), ')');
}

// YAML cuts `[max(a, b), c]` at each comma. How many entries from `begin` on
// are the pieces of one call; 1 if none was cut.
size_t PiecesOfCall(const std::vector<Node::Entry>& entries, size_t begin) {
  int open = OpenParentheses(*entries[begin].value);
  if (open <= 0) return 1;
  for (size_t i = begin + 1; i < entries.size(); ++i) {
    const Node::Entry& entry = entries[i];
    if (entry.key != nullptr) open += OpenParentheses(*entry.key);
    open += OpenParentheses(*entry.value);
    if (open <= 0) return i - begin + 1;
  }
  return 1;
}

// Node tree → ModelSpec. One method per key of the spec; the tables of keys
// below say which mapping has which, so unknown keys are found by the way.
class SpecParser {
 public:
  explicit SpecParser(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  ModelSpec Parse(const Node& root) {
    ModelSpec model;
    const Span whole_file = {root.span.source, 0, 0, 0};
    // What a mapping lacks may stand in a file that is not there.
    is_part_ = root.incomplete;
    ReadMap(root, whole_file, "the spec", kModelKeys, model);
    return model;
  }

 private:
  template <typename T>
  struct Key {
    std::string_view name;
    bool required;
    void (SpecParser::*read)(const Node::Entry& entry, T& out);
  };

  static const std::vector<Key<ModelSpec>> kModelKeys;
  static const std::vector<Key<ModelSpec>> kMeshKeys;
  static const std::vector<Key<TensorSpec>> kTensorKeys;
  static const std::vector<Key<TensorSpec>> kStoredKeys;

  template <typename T>
  static std::vector<std::string> Names(const std::vector<Key<T>>& keys) {
    std::vector<std::string> names;
    for (const Key<T>& key : keys) names.emplace_back(key.name);
    return names;
  }

  // `place` is where a missing key is missing, `what` says what lacks it.
  template <typename T>
  void ReadMap(const Node& map, Span place, const std::string& what,
               const std::vector<Key<T>>& keys, T& out) {
    NoteGaps(map);
    std::set<std::string> meant;  // Keys that unknown ones are near; "": one is near none.
    for (const Node::Entry& entry : map.entries) {
      const auto key = std::find_if(keys.begin(), keys.end(),
                                    [&](const Key<T>& k) { return k.name == entry.key->text; });
      if (key != keys.end()) {
        const size_t before = Faults();
        (this->*key->read)(entry, out);
        if (Faults() != before) out.wrong.Add(key->name);
        continue;
      }
      const std::vector<std::string> names = Names(keys);
      meant.insert(Closest(entry.key->text, names));
      Error(*entry.key, fmt::format("unknown key {} in {}", Quote(entry.key->text), what),
            DidYouMean(entry.key->text, names));
    }
    for (const Key<T>& key : keys) {
      if (map.Find(key.name) != nullptr) continue;
      const bool misspelt = meant.count(std::string(key.name)) != 0;
      if (misspelt || IsPart(map) || meant.count("") != 0) out.wrong.Add(key.name);
      if (!key.required || misspelt || IsPart(map)) continue;
      ErrorAt(place, fmt::format("{} has no `{}`", what, key.name), RequiredHint(key.name));
      out.wrong.Add(key.name);
    }
  }

  static std::string RequiredHint(std::string_view key) {
    if (key == "shardinit") return "start with `shardinit: 1`, the version of the format";
    if (key == "init") return "name an initializer, such as `init: zeros`";
    if (key == "shape") return "list its dimensions, such as `shape: [8, 16]`; `[]` is a scalar";
    if (key == "axes") return "write `mesh: {axes: {data: 8}}`";
    if (key == "from") return "name a tensor of `modules`, as in `from: model.norm.weight`";
    return {};
  }

  // Top level.

  void ReadVersion(const Node::Entry&, ModelSpec&) {}  // Checked file by file.

  void ReadName(const Node::Entry& entry, ModelSpec& model) {
    if (IsText(entry) && CheckModelName(*entry.value, diagnostics_))
      model.name = Text(*entry.value);
  }

  // Numbers in expressions end at 2^63 - 1.
  void ReadSeed(const Node::Entry& entry, ModelSpec& model) {
    const Node& node = *entry.value;
    if (!IsNumber(node) || !IsDigits(node.text) || node.text.starts_with('0')) {
      model.seed = ReadExpr(entry);
    } else if (const auto seed = Natural(node.text); !seed) {
      Error(node, fmt::format("`seed` {} does not fit in 64 bits", Quote(node.text)),
            fmt::format("the largest is {}", std::numeric_limits<uint64_t>::max()));
    } else if (*seed > std::numeric_limits<int64_t>::max()) {
      model.large_seed = {*seed, node.span};
    } else {
      model.seed = ReadExpr(entry);
    }
  }
  void ReadDtype(const Node::Entry& entry, ModelSpec& model) {
    if (IsText(entry)) model.dtype = Text(*entry.value);
  }
  void ReadEngine(const Node::Entry& entry, ModelSpec& model) { model.engine = ReadWord(entry); }
  void ReadUneven(const Node::Entry& entry, ModelSpec& model) {
    model.uneven = ReadChoice(entry, kUnevenPolicies);
  }
  void ReadReplicas(const Node::Entry& entry, ModelSpec& model) {
    model.replicas = ReadChoice(entry, kReplicaPolicies);
  }
  void ReadFans(const Node::Entry& entry, ModelSpec& model) {
    model.fans = ReadChoice(entry, kFanOrders);
  }

  void ReadVars(const Node::Entry& entry, ModelSpec& model) {
    model.vars = ReadExprs(entry, "variable");
  }

  void ReadConfig(const Node::Entry& entry, ModelSpec& model) {
    if (!IsMap(entry, "such as `{model_type: llama}`")) return;
    if (entry.value->height > kConfigDepth) {
      Error(*entry.value, fmt::format("`config` is nested over {} levels", kConfigDepth));
      return;
    }
    model.config = std::get<ConfigSpec::Map>(ReadConfigValue(*entry.value).value);
  }

  // Scalars are what JSON would make of them; text that begins with `=` is an
  // expression, in quotes or not.
  ConfigSpec ReadConfigValue(const Node& node) {
    if (node.IsNull()) return {nullptr};
    if (node.IsMap()) {
      ConfigSpec::Map map;
      for (const Node::Entry& entry : node.entries) {
        map.push_back({Text(*entry.key), ReadConfigValue(*entry.value)});
      }
      return {std::move(map)};
    }
    if (node.IsSequence()) {
      ConfigSpec::List list;
      for (const Node::Entry& entry : node.entries) {
        list.push_back(ReadConfigValue(*entry.value));
      }
      return {std::move(list)};
    }
    if (node.text.starts_with('=')) {
      if (!node.verbatim) {
        Error(node, "an expression must be in one line, without escapes");
        return {nullptr};
      }
      Span span = node.span;
      span.column += IsInQuotes(node) ? 2 : 1;
      return {ParseExpr(node.text.substr(1), span, diagnostics_)};
    }
    if (IsBoolean(node)) return {node.text == "true"};
    if (!IsNumber(node)) return {std::string(node.text)};
    std::string_view digits = node.text;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const char* end = digits.data() + digits.size();
    int64_t integer = 0;
    const auto [stop, error] = std::from_chars(digits.data(), end, integer);
    if (stop == end && error == std::errc()) return {integer};
    if (const auto natural = Natural(digits)) return {*natural};
    if (stop == end) {
      Error(node, fmt::format("{} does not fit in 64 bits", Quote(node.text)),
            "put it in quotes to keep its digits as text, or write it as a float, such as `1e20`");
      return {nullptr};
    }
    double number = 0;
    const auto parsed = std::from_chars(digits.data(), end, number);
    if (parsed.ptr == end && parsed.ec == std::errc()) return {number};
    Error(node, fmt::format("{} is no number that JSON has", Quote(node.text)),
          "put it in quotes if it is text");
    return {nullptr};
  }

  void ReadMesh(const Node::Entry& entry, ModelSpec& model) {
    if (!IsMap(entry, "such as `{axes: {data: 8}}`")) return;
    const std::vector<Node::Entry>& entries = entry.value->entries;
    const bool is_flat = std::none_of(entries.begin(), entries.end(), [](const Node::Entry& axis) {
      return !Closest(axis.key->text, Names(kMeshKeys)).empty();
    });
    if (is_flat && !entries.empty()) {
      Error(*entry.key, "`mesh` has no `axes`",
            fmt::format("write `mesh: {{axes: {{{}: …}}}}`", Escape(entries[0].key->text)));
    } else {
      ReadMap(*entry.value, entry.key->span, "`mesh`", kMeshKeys, model);
    }
  }

  void ReadMeshAxes(const Node::Entry& entry, ModelSpec& model) {
    model.mesh = ReadExprs(entry, "mesh axis");
  }

  void ReadRules(const Node::Entry& entry, ModelSpec& model) {
    constexpr std::string_view kForm =
        "a rule has the form `{logical: axis}`, `{logical: [axis, axis]}` or "
        "`{logical: null}`";
    model.has_rules = true;
    if (!IsSequence(entry, kForm) || !IsShort(entry)) return;
    for (const Node::Entry& item : entry.value->entries) {
      const Node& rule = *item.value;
      RuleSpec& read = model.rules.emplace_back();
      if (NoteGaps(rule)) continue;
      if (!rule.IsMap() || rule.entries.size() != 1) {
        Error(rule,
              rule.IsMap() ? fmt::format("a rule has one entry, not {}", rule.entries.size())
                           : fmt::format("a rule is a mapping, not {}", Describe(rule)),
              std::string(kForm));
        continue;
      }
      const Node::Entry& only = rule.entries[0];
      read = {ReadIdentifier(*only.key, "logical axis"), ReadMeshAxisList(*only.value)};
    }
  }

  void ReadInits(const Node::Entry& entry, ModelSpec& model) {
    if (!IsMap(entry, "such as `{base: {normal: {std: 0.02}}}`")) return;
    for (const Node::Entry& item : entry.value->entries) {
      Named<InitSpec>& init = model.inits.emplace_back();
      init.name = ReadIdentifier(*item.key, "initializer");
      init.value = ReadInit(*item.value).value_or(InitSpec());
    }
    if (entry.value->incomplete) model.inits.emplace_back();
  }

  void ReadModules(const Node::Entry& entry, ModelSpec& model) {
    if (IsMap(entry, "of modules and tensors")) ReadModule(entry, 0, model.modules);
  }

  void ReadLayouts(const Node::Entry& entry, ModelSpec& model) {
    if (entry.value->IsNull()) return;  // Of a spec that includes one with layouts.
    if (!IsMap(entry, "of layouts by name")) return;
    for (const Node::Entry& item : entry.value->entries) {
      if (item.value->IsNull()) continue;  // Likewise.
      if (!CheckIdentifier(*item.key, "layout", diagnostics_) ||
          !IsMap(item, "of modules and stored tensors"))
        continue;
      Named<LayoutSpec> layout = {Text(*item.key), {}};
      layout_ = &layout.value;
      const size_t before = Faults();
      ReadModule(item, 0, layout.value.modules);
      layout.value.wrong = Faults() != before || item.value->incomplete;
      layout_ = nullptr;
      model.layouts.push_back(std::move(layout));
    }
  }

  // Modules and tensors. `prefix`: bytes of the path before these names. In a
  // layout these are modules and stored tensors.

  void ReadModule(const Node::Entry& entry, size_t prefix, ModuleSpec& module) {
    module.span = entry.key->span;
    NoteGaps(*entry.value);
    bool has_members = false;
    for (const Node::Entry& item : entry.value->entries) {
      const size_t before = Faults();
      has_members |= ReadModuleEntry(item, prefix, module);
      if (Faults() == before) continue;
      // A member that is wrong may be one of these, misspelt.
      static const std::vector<std::string> kKeys = {"repeat", "fans", "when"};
      const std::string closest = Closest(item.key->text, kKeys);
      for (const std::string& key : kKeys) {
        if (key == closest) module.wrong.Add(key);
      }
    }
    if (!has_members && !IsPart(*entry.value))
      Error(*entry.key, fmt::format("module {} is empty", Quote(entry.key->text)));
  }

  // Whether it is a member, or stands for some.
  bool ReadModuleEntry(const Node::Entry& item, size_t prefix, ModuleSpec& module) {
    if (item.key->text == "repeat") {
      ReadRepeat(item, module);
      return false;
    }
    if (layout_ != nullptr && prefix == 0 &&
        (item.key->text == "keep" || item.key->text == "omit")) {
      ReadGlobs(item, item.key->text == "keep" ? layout_->keep : layout_->omit);
      return item.key->text == "keep";
    }
    if (item.key->text == "fans" && layout_ == nullptr) {
      module.fans = ReadChoice(item, kFanOrders);
      return false;
    }
    if (item.key->text == "when") {
      module.when = ReadExpr(item);
      return false;
    }
    if (CheckPath(*item.key, prefix, diagnostics_))
      ReadMember(item, prefix + item.key->text.size() + 1, module);
    return true;
  }

  void ReadGlobs(const Node::Entry& entry, std::vector<Located<std::string>>& globs) {
    if (!IsSequence(entry, "of paths, in which `*` stands for anything") || !IsShort(entry)) {
      return;
    }
    for (const Node::Entry& item : entry.value->entries) {
      if (IsText({entry.key, item.value})) globs.push_back(Text(*item.value));
    }
  }

  void ReadMember(const Node::Entry& item, size_t prefix, ModuleSpec& module) {
    if (layout_ != nullptr && item.value->IsScalar()) {
      TensorSpec tensor;
      tensor.span = item.key->span;
      const size_t before = Faults();
      ReadFrom(item, tensor);
      if (Faults() != before) tensor.wrong.Add("from");
      module.members.push_back({Text(*item.key), std::move(tensor)});
    } else if (layout_ != nullptr && !item.value->IsMap()) {
      Error(*item.value,
            fmt::format("{} must be a stored tensor or a module, not {}", Quote(item.key->text),
                        Describe(*item.value)),
            "name a tensor of `modules`, or write `{from: …}`");
    } else if (!item.value->IsMap()) {
      Error(*item.value,
            fmt::format("{} must be a tensor or a module, which are mappings, not {}",
                        Quote(item.key->text), Describe(*item.value)),
            "a tensor has the form `{shape: [8, 16], init: zeros}`");
    } else if (IsTensor(*item.value)) {
      TensorSpec tensor;
      tensor.span = item.key->span;
      ReadMap(*item.value, tensor.span,
              fmt::format("{} {}", layout_ != nullptr ? "stored tensor" : "tensor",
                          Quote(item.key->text)),
              TensorKeys(), tensor);
      CheckRank(tensor);
      CheckFans(tensor);
      module.members.push_back({Text(*item.key), std::move(tensor)});
    } else {
      auto child = std::make_unique<ModuleSpec>();
      ReadModule(item, prefix, *child);
      module.members.push_back({Text(*item.key), std::move(child)});
    }
  }

  const std::vector<Key<TensorSpec>>& TensorKeys() const {
    return layout_ != nullptr ? kStoredKeys : kTensorKeys;
  }

  // What has a shape (in a layout, a `from`) is a tensor. So is what has a
  // tensor's key with a value that no module's member has: its shape was
  // forgotten. `fans` and `when` may be a module's.
  bool IsTensor(const Node& map) const {
    const auto& keys = TensorKeys();
    if (map.Find(keys.front().name) != nullptr) return true;
    return std::any_of(keys.begin(), keys.end(), [&](const Key<TensorSpec>& key) {
      const Node* value = map.Find(key.name);
      if (value == nullptr || key.name == "fans" || key.name == "when") return false;
      // A layout's member may be a plain path.
      return layout_ != nullptr ? value->IsSequence() : !value->IsMap();
    });
  }

  void ReadRepeat(const Node::Entry& entry, ModuleSpec& module) {
    module.repeat = ReadCount(entry);
  }

  // `{variable: count}`, of `repeat` and `for`.
  std::optional<Named<ExprPtr>> ReadCount(const Node::Entry& entry) {
    const std::string form = fmt::format("such as `{}: {{layer: 32}}`", entry.key->text);
    if (!IsMap(entry, form) || entry.value->incomplete) return std::nullopt;
    if (entry.value->entries.size() != 1) {
      Error(*entry.value,
            fmt::format("{} has one variable, not {}", Quote(entry.key->text),
                        entry.value->entries.size()),
            form);
      return std::nullopt;
    }
    const Node::Entry& only = entry.value->entries[0];
    if (!CheckIdentifier(*only.key, fmt::format("{} variable", entry.key->text), diagnostics_))
      return std::nullopt;
    return Named<ExprPtr>{Text(*only.key), ReadExpr(only)};
  }

  // Views.

  void ReadFrom(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.from = ReadView(*entry.value);
  }

  // Complete but for what was reported.
  ViewSpec ReadView(const Node& node) {
    constexpr std::string_view kForm =
        "name a tensor of `modules`, or write an operation such as "
        "`{concat: {axis: 0, of: [a, b]}}`";
    ViewSpec view;
    view.span = node.span;
    if (node.IsScalar() && !IsNumber(node) && !IsBoolean(node)) {
      view.path = ReadPathSpec(node);
      return view;
    }
    if (NoteGaps(node)) return view;
    if (!node.IsMap() || node.entries.size() != 1) {
      Error(node,
            node.IsMap() ? fmt::format("a view has one operation, not {}", node.entries.size())
                         : fmt::format("a view is a path or a mapping, not {}", Describe(node)),
            std::string(kForm));
      return view;
    }
    const Node::Entry& only = node.entries[0];
    view.span = only.key->span;
    view.operation = Text(*only.key);
    if (!CheckIdentifier(*only.key, "operation", diagnostics_) ||
        !IsMap(only, "such as `{axis: 0, of: [a, b]}`"))
      return view;
    for (const Node::Entry& item : only.value->entries) ReadViewArgument(item, view);
    if (view.of.empty() && !IsPart(*only.value) && only.value->Find("of") == nullptr) {
      Error(*only.key, fmt::format("{} has no `of`", Quote(only.key->text)),
            "say what it is of: a path or another operation, or a list of them");
    }
    return view;
  }

  void ReadViewArgument(const Node::Entry& item, ViewSpec& view) {
    if (item.key->text == "for") {
      view.loop = ReadCount(item);
    } else if (item.key->text == "of" && item.value->IsSequence()) {
      view.is_list = true;
      for (const Node::Entry& of : item.value->entries) view.of.push_back(ReadView(*of.value));
      if (view.of.empty()) Error(*item.value, "`of` is empty");
    } else if (item.key->text == "of") {
      view.of.push_back(ReadView(*item.value));
    } else if (CheckIdentifier(*item.key, "argument", diagnostics_)) {
      ViewSpec::Argument argument = {Text(*item.key), item.value->IsSequence(), {}};
      if (!argument.is_list) {
        argument.values.push_back(ReadExpr(item));
      } else {
        const std::vector<Node::Entry>& items = item.value->entries;
        for (size_t i = 0; i < items.size(); ++i) {
          argument.values.push_back(
              ReportCutCall(items, &i) ? nullptr : ReadExpr({item.key, items[i].value}));
        }
      }
      view.arguments.push_back(std::move(argument));
    }
  }

  // Text with `{expressions}`. What is left of the text is checked by being
  // looked up.
  PathSpec ReadPathSpec(const Node& node) {
    PathSpec path = {Text(node), {}};
    const std::string_view text = node.text;
    if (text.empty()) Error(node, "a path is empty");
    for (size_t at = 0; at < text.size();) {
      const size_t open = std::min(text.find('{', at), text.size());
      PathSpec::Part part = {std::string(text.substr(at, open - at)), nullptr};
      at = open;
      if (open < text.size()) {
        const size_t close = text.find('}', open);
        if (close == text.npos || !node.verbatim) {
          Error(node, node.verbatim
                          ? fmt::format("{} has a `{{` without its `}}`", Quote(text))
                          : "a path with expressions must be in one line, without escapes");
          return path;
        }
        Span span = node.span;
        span.column += static_cast<uint32_t>(open + 1 + (IsInQuotes(node) ? 1 : 0));
        span.length = static_cast<uint32_t>(close - open - 1);
        part.number = ParseExpr(text.substr(open + 1, close - open - 1), span, diagnostics_);
        if (part.number == nullptr) return path;
        at = close + 1;
      }
      path.parts.push_back(std::move(part));
    }
    return path;
  }

  void ReadShape(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.shape_span = entry.value->span;
    shape_is_list_ = IsSequence(entry, "of dimensions, such as `[8, 16]`; `[]` is a scalar");
    if (!shape_is_list_) return;
    const std::vector<Node::Entry>& items = entry.value->entries;
    for (size_t i = 0; i < items.size(); ++i) {
      if (ReportCutCall(items, &i)) {
        tensor.shape.push_back(nullptr);
        continue;
      }
      tensor.shape.push_back(ReadExpr({entry.key, items[i].value}, "a dimension"));
    }
  }

  void ReadTensorAxes(const Node::Entry& entry, TensorSpec& tensor) {
    if (!IsSequence(entry, "of one logical axis for each dimension")) return;
    auto& axes = tensor.axes.emplace();
    axes.span = entry.value->span;
    for (const Node::Entry& item : entry.value->entries) {
      axes.value.push_back(item.value->IsNull() ? Located<std::string>{"", item.value->span}
                                                : ReadAxisName(*item.value, "logical axis"));
    }
  }

  void ReadTensorDtype(const Node::Entry& entry, TensorSpec& tensor) {
    if (IsText(entry)) tensor.dtype = Text(*entry.value);
  }
  void ReadTensorInit(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.init = ReadInit(*entry.value);
  }
  void ReadTensorWhen(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.when = ReadExpr(entry);
  }
  void ReadTensorUneven(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.uneven = ReadChoice(entry, kUnevenPolicies);
  }

  void ReadShard(const Node::Entry& entry, TensorSpec& tensor) {
    if (!IsSequence(entry,
                    "of one entry for each dimension: `axis`, `[axis, axis]` "
                    "or `null`"))
      return;
    auto& shard = tensor.shard.emplace();
    shard.span = entry.value->span;
    for (const Node::Entry& item : entry.value->entries)
      shard.value.push_back(ReadMeshAxisList(*item.value));
  }

  void ReadKey(const Node::Entry& entry, TensorSpec& tensor) {
    if (IsText(entry) && CheckKey(*entry.value, diagnostics_)) tensor.key = Text(*entry.value);
  }

  void ReadTensorFans(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.fans = ReadChoice(entry, kFanOrders);
  }
  void ReadInAxis(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.in_axis = ReadDimensions(entry);
  }
  void ReadOutAxis(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.out_axis = ReadDimensions(entry);
  }
  void ReadBatchAxis(const Node::Entry& entry, TensorSpec& tensor) {
    tensor.batch_axis = ReadDimensions(entry);
  }

  // `embed`, `-2` or a list of such.
  std::optional<DimensionList> ReadDimensions(const Node::Entry& entry) {
    DimensionList list = {{}, entry.value->span};
    if (!entry.value->IsSequence()) {
      if (const auto dimension = ReadDimension(entry, *entry.value)) {
        list.value.push_back(*dimension);
        return list;
      }
      return std::nullopt;
    }
    for (const Node::Entry& item : entry.value->entries) {
      const auto dimension = ReadDimension(entry, *item.value);
      if (!dimension) return std::nullopt;
      list.value.push_back(*dimension);
    }
    return list;
  }

  std::optional<DimensionRef> ReadDimension(const Node::Entry& entry, const Node& node) {
    // Neither `01`, which some read as octal, nor what 64 bits do not hold.
    int64_t position = 0;
    if (IsNumber(node)) {
      std::from_chars(node.text.data(), node.text.data() + node.text.size(), position);
    }
    if (!node.IsScalar() || IsBoolean(node) ||
        (IsNumber(node) && fmt::format("{}", position) != node.text)) {
      Error(node,
            fmt::format("{} must name a dimension, not {}", Quote(entry.key->text), Describe(node)),
            "write a name of the tensor's `axes` or a position, such as `-2` "
            "for the last but one");
      return std::nullopt;
    }
    if (IsNumber(node)) return DimensionRef{position, node.span};
    if (!CheckIdentifier(node, "logical axis", diagnostics_)) return std::nullopt;
    return DimensionRef{std::string(node.text), node.span};
  }

  void CheckFans(const TensorSpec& tensor) {
    if (!tensor.fans || !(tensor.in_axis || tensor.out_axis)) return;
    ErrorAt(tensor.fans->span,
            fmt::format("a tensor with `{}` has no use for `fans`",
                        tensor.in_axis ? "in_axis" : "out_axis"),
            "remove one of the two");
  }

  void CheckRank(TensorSpec& tensor) {
    // Without a good shape there is nothing to compare with.
    if (tensor.shape_span.source == nullptr || !shape_is_list_) return;
    const size_t rank = tensor.shape.size();
    if (tensor.axes && tensor.axes->value.size() != rank) {
      tensor.wrong.Add("axes");
      ErrorAt(tensor.axes->span,
              fmt::format("`axes` has {}, but the shape has {}",
                          Count(tensor.axes->value.size(), "name"), Count(rank, "dimension")),
              "name one logical axis for each dimension; `null` for none");
      diagnostics_.Note(tensor.shape_span, "the shape");
    }
    if (tensor.shard && tensor.shard->value.size() > rank) {
      ErrorAt(tensor.shard->span,
              fmt::format("`shard` has {}, but the shape has {}",
                          Count(tensor.shard->value.size(), "entry", "entries"),
                          Count(rank, "dimension")),
              "give at most one entry for each dimension");
      diagnostics_.Note(tensor.shape_span, "the shape");
    }
  }

  // Values.

  static std::string Count(size_t n, std::string_view one, std::string_view many = {}) {
    if (n == 1) return fmt::format("1 {}", one);
    return many.empty() ? fmt::format("{} {}s", n, one) : fmt::format("{} {}", n, many);
  }

  std::optional<InitSpec> ReadInit(const Node& node) {
    constexpr std::string_view kForm = "write a name, such as `zeros`, or `{normal: {std: 0.02}}`";
    if (node.IsScalar() && !IsNumber(node) && !IsBoolean(node)) {
      if (node.text.find('(') != std::string_view::npos) {
        Error(node, fmt::format("an initializer is a name or a mapping, not {}", Quote(node.text)),
              "arguments are a mapping, such as `{normal: {std: 0.02}}`");
        return std::nullopt;
      }
      if (!CheckIdentifier(node, "initializer", diagnostics_)) return std::nullopt;
      return InitSpec{Text(node), nullptr, {}};
    }
    if (NoteGaps(node)) return std::nullopt;
    if (!node.IsMap()) {
      Error(node, fmt::format("an initializer is a name or a mapping, not {}", Describe(node)),
            std::string(kForm));
      return std::nullopt;
    }
    if (size_t first = 0; !node.entries.empty() && ReportCutCall(node.entries, &first)) {
      return std::nullopt;
    }
    if (node.entries.size() != 1) {
      Error(node, fmt::format("an initializer has one name, not {}", node.entries.size()),
            std::string(kForm));
      return std::nullopt;
    }
    const Node::Entry& only = node.entries[0];
    if (!CheckIdentifier(*only.key, "initializer", diagnostics_)) return std::nullopt;
    if (only.key->text == "expr") {
      const ExprPtr expr = ReadExpr(only, "`expr`");
      if (expr == nullptr) return std::nullopt;
      return InitSpec{Text(*only.key), expr, {}};
    }
    if (!IsMap(only, "arguments have names, as in `{normal: {std: 0.02}}`")) return std::nullopt;
    return InitSpec{Text(*only.key), nullptr, ReadExprs(only, "argument")};
  }

  // `null`, `axis` or `[axis, axis]`.
  AxisList ReadMeshAxisList(const Node& node) {
    AxisList axes = {{}, node.span};
    if (node.IsSequence()) {
      for (const Node::Entry& item : node.entries)
        axes.value.push_back(ReadAxisName(*item.value, "mesh axis"));
    } else if (!node.IsNull()) {
      axes.value.push_back(ReadAxisName(node, "mesh axis"));
    }
    std::erase_if(axes.value, [](const auto& axis) { return axis.value.empty(); });
    return axes;
  }

  // Empty if it is wrong.
  Located<std::string> ReadAxisName(const Node& node, std::string_view what) {
    if (!node.IsScalar()) {
      Error(node, fmt::format("a {} is a name, not {}", what, Describe(node)));
    } else if (node.text == "-" || node.text == "None") {
      Error(node, fmt::format("{} is no name of a {}", Quote(node.text), what),
            "write `null` for a dimension without one");
    } else {
      return ReadIdentifier(node, what);
    }
    return {"", node.span};
  }

  // Empty if it is wrong.
  Located<std::string> ReadIdentifier(const Node& node, std::string_view what) {
    if (CheckIdentifier(node, what, diagnostics_)) return Text(node);
    return {"", node.span};
  }

  // A mapping of names to expressions.
  std::vector<Named<ExprPtr>> ReadExprs(const Node::Entry& entry, std::string_view what) {
    std::vector<Named<ExprPtr>> exprs;
    if (!IsMap(entry, "of names to numbers")) return exprs;
    const std::vector<Node::Entry>& items = entry.value->entries;
    for (size_t i = 0; i < items.size(); ++i) {
      const Node& name = *items[i].key;
      if (i > 0 && ReportCutNumber(*items[i - 1].value, items[i])) {
        exprs.back().value = nullptr;
        continue;
      }
      Named<ExprPtr>& expr = exprs.emplace_back();
      expr.name = ReadIdentifier(name, what);
      if (!ReportCutCall(items, &i)) expr.value = ReadExpr(items[i]);
    }
    if (entry.value->incomplete) exprs.emplace_back();
    return exprs;
  }

  // In braces, `50,304` is the number 50 and a key 304 without a value.
  bool ReportCutNumber(const Node& before, const Node::Entry& entry) {
    const std::string_view digits = entry.key->text;
    if (!entry.value->IsNull() || !IsNumber(before) || digits.empty() ||
        digits.find_first_not_of("0123456789") != digits.npos)
      return false;
    Error(*entry.key, "a comma ends the number before it",
          fmt::format("write `{}{}{}`", before.text, before.text == "0" ? "." : "", digits));
    return true;
  }

  // Moves `*at` to the last piece of a call that a YAML comma has cut.
  bool ReportCutCall(const std::vector<Node::Entry>& items, size_t* at) {
    const size_t pieces = PiecesOfCall(items, *at);
    if (pieces == 1) return false;
    Error(*items[*at].value, "a comma ends the value here, inside the parentheses",
          "put the whole expression in quotes, such as \"max(a, b)\"");
    *at += pieces - 1;
    return true;
  }

  ExprPtr ReadExpr(const Node::Entry& entry, std::string_view what = {}) {
    const Node& node = *entry.value;
    const std::string subject = what.empty() ? Quote(entry.key->text) : std::string(what);
    if (!node.IsScalar() || IsBoolean(node)) {
      Error(node,
            fmt::format("{} must be a number or an expression, not {}", subject, Describe(node)),
            node.IsSequence() || node.IsMap() ? "" : "such as `4096` or `2 * d`");
      return nullptr;
    }
    if (node.quoted && IsNumberText(node.text)) {
      Error(node,
            fmt::format("{} must be a number, but {} in quotes is text", subject, Quote(node.text)),
            "remove the quotes; they are for expressions with commas");
      return nullptr;
    }
    if (!node.verbatim) {
      Error(node, fmt::format("{} must be an expression in one line, without escapes", subject));
      return nullptr;
    }
    Span span = node.span;
    span.column += node.text.data() == nullptr || !IsInQuotes(node) ? 0 : 1;
    return ParseExpr(node.text, span, diagnostics_);
  }

  // `!!str 5` is quoted in effect, but has no quotes.
  static bool IsInQuotes(const Node& node) { return node.span.length == node.text.size() + 2; }

  std::optional<Located<std::string>> ReadWord(const Node::Entry& entry) {
    if (!IsText(entry)) return std::nullopt;
    if (!CheckIdentifier(*entry.value, Quote(entry.key->text), diagnostics_)) return std::nullopt;
    return Text(*entry.value);
  }

  std::optional<Located<std::string>> ReadChoice(const Node::Entry& entry,
                                                 const std::vector<std::string>& choices) {
    const Node& node = *entry.value;
    if (node.IsScalar() && std::find(choices.begin(), choices.end(), node.text) != choices.end())
      return Text(node);
    Error(node,
          fmt::format("{} must be `{}` or `{}`, not {}", Quote(entry.key->text), choices[0],
                      choices[1], Describe(node)),
          node.IsScalar() && !Closest(node.text, choices).empty() ? DidYouMean(node.text, choices)
                                                                  : "");
    return std::nullopt;
  }

  // Kinds. Each reports, naming the key, what it does not find.

  bool IsMap(const Node::Entry& entry, std::string_view hint) {
    NoteGaps(*entry.value);
    if (entry.value->IsMap()) return true;
    ReportKind(entry, "a mapping", hint);
    return false;
  }

  bool IsSequence(const Node::Entry& entry, std::string_view hint) {
    if (entry.value->IsSequence()) return true;
    ReportKind(entry, "a list", hint);
    return false;
  }

  bool IsText(const Node::Entry& entry) {
    const Node& node = *entry.value;
    if (node.IsScalar() && !IsBoolean(node) && !IsNumber(node)) return true;
    ReportKind(entry, "text", node.IsScalar() ? "put it in quotes" : "");
    return false;
  }

  void ReportKind(const Node::Entry& entry, std::string_view wanted, std::string_view hint) {
    Error(*entry.value,
          fmt::format("{} must be {}, not {}", Quote(entry.key->text), wanted,
                      Describe(*entry.value)),
          std::string(hint));
  }

  static Located<std::string> Text(const Node& node) { return {std::string(node.text), node.span}; }

  bool IsShort(const Node::Entry& entry) {
    const size_t entries = entry.value->entries.size();
    if (entries <= kMostRules) return true;
    Error(*entry.key, fmt::format("{} has {} entries, but may have at most {}",
                                  Quote(entry.key->text), entries, kMostRules));
    return false;
  }

  bool IsPart(const Node& map) const { return map.incomplete || is_part_; }

  // True: entries of the map were left out, and so its number of them says nothing.
  bool NoteGaps(const Node& map) {
    known_faults_ += map.incomplete;
    return map.incomplete;
  }

  // Grows with every mistake, be it reported here or before.
  size_t Faults() const { return diagnostics_.all().size() + known_faults_; }

  void Error(const Node& node, std::string message, std::string hint = {}) {
    if (node.ambiguous) {
      ++known_faults_;
    } else {
      ErrorAt(node.span, std::move(message), std::move(hint));
    }
  }
  void ErrorAt(Span span, std::string message, std::string hint = {}) {
    diagnostics_.Error(span, std::move(message), std::move(hint));
  }

  Diagnostics& diagnostics_;
  size_t known_faults_ = 0;       // Met again, and not reported again.
  bool is_part_ = false;          // Of a spec of which the rest is not there.
  LayoutSpec* layout_ = nullptr;  // The one that is being read.
  bool shape_is_list_ = false;    // Of the tensor that is being read.
};

const std::vector<SpecParser::Key<ModelSpec>> SpecParser::kModelKeys = {
    {"shardinit", true, &SpecParser::ReadVersion},
    {"name", true, &SpecParser::ReadName},
    {"seed", false, &SpecParser::ReadSeed},
    {"dtype", false, &SpecParser::ReadDtype},
    {"engine", false, &SpecParser::ReadEngine},
    {"vars", false, &SpecParser::ReadVars},
    {"mesh", false, &SpecParser::ReadMesh},
    {"rules", false, &SpecParser::ReadRules},
    {"init", false, &SpecParser::ReadInits},
    {"uneven", false, &SpecParser::ReadUneven},
    {"replicas", false, &SpecParser::ReadReplicas},
    {"fans", false, &SpecParser::ReadFans},
    {"config", false, &SpecParser::ReadConfig},
    {"include", false, &SpecParser::ReadVersion},  // Merged by LoadTree.
    {"modules", true, &SpecParser::ReadModules},
    {"layouts", false, &SpecParser::ReadLayouts},
};

const std::vector<SpecParser::Key<ModelSpec>> SpecParser::kMeshKeys = {
    {"axes", true, &SpecParser::ReadMeshAxes},
};

const std::vector<SpecParser::Key<TensorSpec>> SpecParser::kTensorKeys = {
    {"shape", true, &SpecParser::ReadShape},
    {"axes", false, &SpecParser::ReadTensorAxes},
    {"dtype", false, &SpecParser::ReadTensorDtype},
    {"init", true, &SpecParser::ReadTensorInit},
    {"shard", false, &SpecParser::ReadShard},
    {"uneven", false, &SpecParser::ReadTensorUneven},
    {"key", false, &SpecParser::ReadKey},
    {"fans", false, &SpecParser::ReadTensorFans},
    {"in_axis", false, &SpecParser::ReadInAxis},
    {"out_axis", false, &SpecParser::ReadOutAxis},
    {"batch_axis", false, &SpecParser::ReadBatchAxis},
    {"when", false, &SpecParser::ReadTensorWhen},
};

const std::vector<SpecParser::Key<TensorSpec>> SpecParser::kStoredKeys = {
    {"from", true, &SpecParser::ReadFrom},        {"axes", false, &SpecParser::ReadTensorAxes},
    {"shard", false, &SpecParser::ReadShard},     {"uneven", false, &SpecParser::ReadTensorUneven},
    {"when", false, &SpecParser::ReadTensorWhen},
};

}  // namespace

bool WrongKeys::Has(std::string_view key) const {
  return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
}

std::optional<ModelSpec> LoadSpec(const SpecRequest& request, Diagnostics& diagnostics) {
  NodeStore store;
  const Node* root = LoadTree(request.path, request.text, store, diagnostics);
  if (root == nullptr) return {};
  const size_t before = diagnostics.all().size();
  root = ApplySets(root, request.sets, store, diagnostics);
  root = ApplyMesh(root, request.mesh, store, diagnostics);
  const bool is_asked_for = diagnostics.all().size() == before;
  ModelSpec spec = ParseSpec(*root, diagnostics);
  // Of a part of a spec, or of another one, nobody knows what else is wrong.
  if (!is_asked_for || root->incomplete) return {};
  return spec;
}

ModelSpec ParseSpec(const Node& root, Diagnostics& diagnostics) {
  return SpecParser(diagnostics).Parse(root);
}

}  // namespace shardinit
