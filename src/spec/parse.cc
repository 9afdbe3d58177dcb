#include "spec/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/include.h"
#include "spec/names.h"
#include "spec/override.h"
#include "spec/parser.h"
#include "spec/set.h"

namespace shardinit {
namespace {

constexpr int kConfigDepth = 16;  // a plan may have 32 levels
// Each tensor is compared with every entry of these lists.
constexpr size_t kMostRules = 1000;

}  // namespace

bool HoldsTensor(const Node& value) {
  if (!value.IsMap()) return false;
  const Node* shape = value.Find("shape");
  const Node* block = value.Find("block");
  return (shape != nullptr && shape->IsSequence()) || (block != nullptr && block->IsScalar()) ||
         std::ranges::any_of(value.entries,
                             [](const Node::Entry& entry) { return HoldsTensor(*entry.value); });
}

bool IsNamesake(const SpecKey& key, const Node& value) {
  return MayBeNamesake(key) && HoldsTensor(value);
}

void SpecParser::ReadName(const Node::Entry& entry, ModelSpec& model) {
  if (IsText(entry) && CheckModelName(*entry.value, diagnostics())) model.name = Text(*entry.value);
}

void SpecParser::ReadConfig(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  // A null removes the `config` of an included file.
  if (entry.value->IsNull() && !entry.value->ambiguous) return;
  if (!IsMap(entry, key.hint)) return;
  if (entry.value->height > kConfigDepth) {
    Error(*entry.value, fmt::format("`config` is nested over {} levels", kConfigDepth));
    return;
  }
  model.config = std::get<ConfigSpec::Map>(ReadConfigValue(*entry.value).value);
}

void SpecParser::ReadFamily(const SpecKey&, const Node::Entry& entry, ModelSpec& model) {
  const Node* fields = entry.value->Find("fields");
  if (fields == nullptr || !fields->IsMap()) return;
  for (const Node::Entry& field : fields->entries) {
    if (field.value->Find("real") != nullptr) model.float_fields.emplace_back(field.key->text);
  }
}

void SpecParser::ReadAssertions(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  // A null removes the assertions of included files.
  if (entry.value->IsNull() && !entry.value->ambiguous) return;
  if (!IsSequence(entry, key.hint) || !IsShort(entry)) return;
  const std::vector<Node::Entry>& items = entry.value->entries;
  for (size_t i = 0; i < items.size(); ++i) {
    AssertSpec read;
    if (items[i].value->IsMap()) {
      ReadMap(*items[i].value, items[i].value->span, "an entry of `assert`", kAssertKeys, read);
    } else if (!ReportCutCall(items, &i)) {
      read.that = ReadExpr({entry.key, items[i].value}, "an entry of `assert`");
    }
    if (read.that != nullptr) model.assertions.push_back(std::move(read));
  }
}

void SpecParser::ReadMesh(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (!IsMap(entry, key.hint)) return;
  const std::vector<Node::Entry>& entries = entry.value->entries;
  const bool is_flat = std::ranges::none_of(entries, [](const Node::Entry& axis) {
    return !Closest(axis.key->text, NamesOf(kMeshKeys)).empty();
  });
  if (is_flat && !entries.empty()) {
    Error(*entry.key, "`mesh` has no `axes`",
          fmt::format("write `mesh: {{axes: {{{}: …}}}}`", Escape(entries[0].key->text)));
  } else {
    ReadMap(*entry.value, entry.key->span, "`mesh`", kMeshKeys, model);
  }
}

void SpecParser::ReadTraining(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (!IsMap(entry, key.hint)) return;
  ReadMap(*entry.value, entry.key->span, "`training`", kTrainingKeys, model.training);
}

void SpecParser::ReadRules(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  // A null removes the `rules` of an included file.
  if (entry.value->IsNull() && !entry.value->ambiguous) return;
  model.has_rules = true;
  if (!IsSequence(entry, key.hint) || !IsShort(entry)) return;
  for (const Node::Entry& item : entry.value->entries) {
    const Node& rule = *item.value;
    RuleSpec& read = model.rules.emplace_back();
    if (NoteGaps(rule)) continue;
    if (!rule.IsMap() || rule.entries.size() != 1) {
      Error(rule,
            rule.IsMap() ? fmt::format("a rule has one entry, not {}", rule.entries.size())
                         : fmt::format("a rule is a mapping, not {}", Describe(rule)),
            std::string(key.hint));
      continue;
    }
    const Node::Entry& only = rule.entries[0];
    read = {ReadIdentifier(*only.key, "logical axis"), ReadMeshAxisList(*only.value)};
  }
}

void SpecParser::ReadSources(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (!IsMap(entry, key.hint)) return;
  for (const Node::Entry& item : entry.value->entries) {
    Named<SourceSpec>& source = model.sources.emplace_back();
    source.name = ReadIdentifier(*item.key, "source");
    if (!IsMap(item, "write it as in `{path: ../llama}`")) continue;
    ReadMap(*item.value, item.key->span, fmt::format("source {}", Quote(item.key->text)),
            kSourceKeys, source.value);
  }
}

void SpecParser::ReadMustHave(const SpecKey& key, const Node::Entry& entry, SourceSpec& source) {
  if (!IsSequence(entry, key.hint) || !IsShort(entry)) return;
  for (const Node::Entry& item : entry.value->entries) {
    if (!item.value->IsMap()) {
      Error(*item.value,
            fmt::format("an entry of `must_have` is a mapping, not {}", Describe(*item.value)),
            std::string(key.hint));
      continue;
    }
    MustHaveSpec& wanted = source.must_have.emplace_back();
    ReadMap(*item.value, item.value->span, "an entry of `must_have`", kMustHaveKeys, wanted);
  }
}

void SpecParser::ReadMustHaveShape(const SpecKey& key, const Node::Entry& entry,
                                   MustHaveSpec& wanted) {
  if (!IsSequence(entry, key.hint)) return;
  wanted.shape = {ReadExprList(entry, "a dimension"), entry.value->span};
}

void SpecParser::ReadInits(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (!IsMap(entry, key.hint)) return;
  for (const Node::Entry& item : entry.value->entries) {
    Named<InitSpec>& init = model.inits.emplace_back();
    init.name = ReadIdentifier(*item.key, "initializer");
    init.value = ReadInit(*item.value).value_or(InitSpec());
  }
  if (entry.value->incomplete) model.inits.emplace_back();
}

void SpecParser::ReadMultipliers(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  // A null removes the multipliers of an included file.
  if (entry.value->IsNull() || !IsMap(entry, key.hint)) return;
  for (const Node::Entry& item : entry.value->entries) {
    if (item.value->IsNull()) continue;
    Located<std::string> name = ReadIdentifier(*item.key, "initializer");
    model.multipliers.push_back({std::move(name), ReadExprs(item, "multiplier")});
  }
}

void SpecParser::ReadModules(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (!IsMap(entry, key.hint)) return;
  ReadModule(entry, 0, kModuleKeys, model.modules);
  GiveDefaults(model.modules);
}

void SpecParser::GiveDefaults(ModuleSpec& module) {
  const auto give = [&](auto& to) {
    if (!to.dtype && !to.wrong.Has("dtype")) {
      to.dtype = module.dtype;
      if (module.wrong.Has("dtype")) to.wrong.Add("dtype");
    }
    if (!to.init && !to.wrong.Has("init")) {
      to.init = module.init;
      to.init_around = module.init_around;
      if (module.wrong.Has("init")) to.wrong.Add("init");
    }
  };
  for (auto& [name, member] : module.members) {
    if (auto* const inner = std::get_if<std::unique_ptr<ModuleSpec>>(&member)) {
      const bool has_own = (*inner)->init != nullptr;
      give(**inner);
      if ((*inner)->arguments && !has_own) ++(*inner)->init_around;
      GiveDefaults(**inner);
      continue;
    }
    auto& tensor = std::get<TensorSpec>(member);
    give(tensor);
    if (tensor.init || tensor.wrong.Has("init")) continue;
    ErrorAt(tensor.span, fmt::format("tensor {} has no `init`", Quote(name.value)),
            "name an initializer, such as `init: zeros`");
    tensor.wrong.Add("init");
  }
}

void SpecParser::ReadLayouts(const SpecKey& key, const Node::Entry& entry, ModelSpec& model) {
  if (entry.value->IsNull()) return;  // removes the layouts of an included file
  if (!IsMap(entry, key.hint)) return;
  for (const Node::Entry& item : entry.value->entries) {
    if (item.value->IsNull()) continue;  // removes this layout of an included file
    if (!CheckIdentifier(*item.key, "layout", diagnostics()) ||
        !IsMap(item, "name modules and stored tensors"))
      continue;
    Named<LayoutSpec> layout = {Text(*item.key), {}};
    layout_ = &layout.value;
    const size_t before = Faults();
    ReadModule(item, 0, kLayoutKeys, layout.value.modules);
    layout.value.wrong = Faults() != before || item.value->incomplete;
    layout_ = nullptr;
    model.layouts.push_back(std::move(layout));
  }
}

void SpecParser::ReadModule(const Node::Entry& entry, size_t prefix,
                            const std::vector<KeyRow<ModuleSpec>>& keys, ModuleSpec& module) {
  module.span = entry.key->span;
  NoteGaps(*entry.value);
  bool has_members = &keys == &kModuleKeys && blocks_.Use(*entry.value, prefix, module, *this);
  for (const Node::Entry& item : entry.value->entries) {
    const KeyRow<ModuleSpec>* key = FindNamed(keys, item.key->text);
    const size_t before = Faults();
    if (key != nullptr && !IsNamesake(*key, *item.value)) {
      key->read(*this, *key, item, module);
    } else if (IsNumbered(item) || CheckPath(*item.key, prefix, diagnostics())) {
      ReadMember(item, prefix + item.key->text.size() + 1, module);
    }
    // The values of `keep` and `stack` also name members.
    has_members |= key == nullptr || IsNamesake(*key, *item.value) || key->name == "keep" ||
                   key->name == "stack";
    if (Faults() == before) continue;
    // An invalid member may be a misspelled key.
    const std::string closest = Closest(item.key->text, NamesOf(keys));
    key = FindNamed(keys, closest);
    if (key != nullptr) module.wrong.Add(key->name);
  }
  if (!has_members && !IsPart(*entry.value))
    Error(*entry.key, fmt::format("module {} is empty", Quote(entry.key->text)));
}

void SpecParser::ReadModuleVariables(const Node::Entry& entry, ModuleSpec& module) {
  module.vars = ReadVariables(entry, kVariable);
}

void SpecParser::ReadGlobs(const Node::Entry& entry, std::vector<Located<std::string>>& globs) {
  if (!IsSequence(entry, "list paths, in which `*` matches anything") || !IsShort(entry)) return;
  for (const Node::Entry& item : entry.value->entries) {
    if (IsText({entry.key, item.value})) globs.push_back(Text(*item.value));
  }
}

void SpecParser::ReadMember(const Node::Entry& item, size_t prefix, ModuleSpec& module) {
  if (layout_ != nullptr && item.value->IsScalar()) {
    TensorSpec tensor;
    tensor.span = item.key->span;
    const size_t before = Faults();
    tensor.from = ReadView(*item.value);
    if (Faults() != before) tensor.wrong.Add("from");
    module.members.push_back({Text(*item.key), std::move(tensor)});
  } else if (layout_ != nullptr && !item.value->IsMap()) {
    Error(*item.value,
          fmt::format("{} must be a stored tensor or a module, not {}", Quote(item.key->text),
                      Describe(*item.value)),
          "name a tensor of `modules`, or write `{from: …}`");
  } else if (!item.value->IsMap()) {
    Error(
        *item.value,
        fmt::format("{} must be a tensor or a module, which are mappings, not {}",
                    Quote(item.key->text), Describe(*item.value)),
        (item.value->IsNull() ? fmt::format("`{}: {{when: false}}` leaves it out; ", item.key->text)
                              : std::string()) +
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
    ReadModule(item, prefix, layout_ == nullptr ? kModuleKeys : kStoredModuleKeys, *child);
    if (IsNumbered(item)) ReadNumbered(*item.key, prefix, *child);
    module.members.push_back({Text(*item.key), std::move(child)});
  }
}

// Returns whether an item is a module whose name contains the number of its repeat.
bool SpecParser::IsNumbered(const Node::Entry& item) const {
  return item.value->IsMap() && !IsTensor(*item.value) &&
         item.key->text.find('{') != item.key->text.npos;
}

void SpecParser::ReadNumbered(const Node& name, size_t prefix, ModuleSpec& module) {
  const size_t before = Faults();
  PathSpec path = ReadPathSpec(name);
  if (Faults() != before) return;
  // The text around the numbers follows the rules for all names.
  std::string text;
  for (const PathSpec::Part& part : path.parts) text += part.text + (part.number ? "0" : "");
  Node plain = name;
  plain.text = text;
  plain.verbatim = false;
  if (!CheckPath(plain, prefix - name.text.size() - 1, diagnostics())) return;
  if (!module.repeat && !module.wrong.Has("repeat")) {
    Error(
        name,
        fmt::format("{} has the number of a repeat in its name, but no `repeat`", Quote(name.text)),
        "add a repeat, such as `repeat: {layer: 12}`");
    return;
  }
  module.numbered = std::move(path);
}

bool SpecParser::IsTensor(const Node& map) const {
  const auto& keys = TensorKeys();
  if (map.Find(keys.front().name) != nullptr) return true;
  const bool has_default = map.Find("dtype") != nullptr || map.Find("init") != nullptr;
  const bool has_members = std::ranges::any_of(map.entries, [](const Node::Entry& entry) {
    const KeyRow<ModuleSpec>* key = FindNamed(kModuleKeys, entry.key->text);
    if (key == nullptr) return entry.value->IsMap();
    return key->kind == SpecKind::kBlock || IsNamesake(*key, *entry.value);
  });
  if (layout_ == nullptr && has_default && !has_members) return true;
  return std::ranges::any_of(keys, [&](const KeyRow<TensorSpec>& key) {
    const Node* value = map.Find(key.name);
    if (value == nullptr || FindNamed(kModuleKeys, key.name) != nullptr) return false;
    // A member of a layout may be a plain path.
    return layout_ != nullptr ? value->IsSequence() : !value->IsMap();
  });
}

bool SpecParser::IsShort(const Node::Entry& entry) {
  const size_t entries = entry.value->entries.size();
  if (entries <= kMostRules) return true;
  return Error(*entry.key, fmt::format("{} has {} entries, but may have at most {}",
                                       Quote(entry.key->text), entries, kMostRules));
}

// Converts `config_json: {require: …}` of an imported family to entries of `assert`. Skips
// requirements on variables that the spec does not have.
static Node* Requirements(const Node& root, NodeStore& store) {
  Node* list = store.New(Node::Kind::kSequence);
  const Node* family = root.Find("config_json");
  const Node* required = family == nullptr ? nullptr : family->Find("require");
  const Node* vars = root.Find("vars");
  if (required == nullptr || !required->IsMap() || vars == nullptr) return list;
  for (const Node::Entry& entry : required->entries) {
    const Node& that = *entry.value;
    Diagnostics unused;
    const ExprPtr expr = that.IsScalar() ? ParseExpr(that.text, that.span, unused) : nullptr;
    if (expr == nullptr) continue;
    const std::vector<std::string> names = NamesIn(*expr);
    const auto is_there = [&](const auto& name) { return vars->Find(name) != nullptr; };
    if (!std::ranges::all_of(names, is_there)) continue;
    Node* message = store.NewScalar(
        store.Keep(fmt::format("the model needs that {}", entry.key->text)), that.span);
    Node* item = store.New(Node::Kind::kMap, that.span);
    item->entries = {{store.NewScalar("that", that.span), &that},
                     {store.NewScalar("message", that.span), message}};
    list->entries.push_back({nullptr, item});
  }
  return list;
}

// Returns a copy of the spec whose `assert` includes the requirements of its family, and omits
// entries `of` a variable that the spec does not have.
static const Node* WithOwnAssertions(const Node* root, NodeStore& store) {
  const Node* vars = root->Find("vars");
  const Node* given = root->Find("assert");
  if (given != nullptr && !given->IsSequence() && !given->IsNull()) return root;
  Node* list = Requirements(*root, store);
  if (given != nullptr) list->span = given->span;
  for (const Node::Entry& item : given == nullptr ? std::vector<Node::Entry>() : given->entries) {
    const Node* of = item.value->IsMap() ? item.value->Find("of") : nullptr;
    const bool is_of_another =
        of != nullptr && of->IsScalar() &&
        (vars == nullptr || !vars->IsMap() || vars->Find(of->text) == nullptr);
    if (!is_of_another) list->entries.push_back(item);
  }
  Node* copy = store.Copy(*root);
  std::erase_if(copy->entries, [](const auto& entry) { return entry.key->text == "assert"; });
  copy->entries.push_back({store.NewScalar("assert", list->span), list});
  return copy;
}

bool WrongKeys::Has(std::string_view key) const { return Contains(keys_, key); }

std::optional<ModelSpec> LoadSpec(const SpecRequest& request, Diagnostics& diagnostics) {
  NodeStore store;
  const Node* root = LoadTree(request.path, request.text, store, diagnostics, request.is_widened);
  if (root == nullptr) return {};
  ModelSpec spec;
  spec.source = root->span.source;
  const size_t before = diagnostics.errors();
  // The sharding is first, because it may add a mesh and variables that the other options change.
  root = ApplySharding(root, request.sharding, store, diagnostics);
  root = ApplySets(root, request.sets, store, diagnostics);
  root = ApplyMesh(root, request.mesh, store, diagnostics);
  for (const std::string& source : request.sources) {
    root = ApplySource(root, source, store, diagnostics);
  }
  for (const auto& [option, key, value] : request.training) {
    root = ApplyTraining(root, option, key, value, store, diagnostics);
  }
  root = WithOwnAssertions(root, store);
  const bool is_asked_for = diagnostics.errors() == before;
  const Span whole_file = {root->span.source, 0, 0, 0};
  SpecParser parser(root->incomplete, diagnostics);
  parser.ReadBlocks(*root);
  parser.ReadMap(*root, whole_file, "the spec", kModelKeys, spec);
  if (spec.has_rules && spec.sharding) {
    diagnostics.Error(spec.sharding->root->span, "a spec has `rules` or `sharding`, not both",
                      "`sharding: {rules: [...]}` combines rules with other languages");
    spec.wrong.Add("sharding");
  }
  // A partial spec, or one without the requested changes, may have undetected errors.
  if (!is_asked_for || root->incomplete) return {};
  return spec;
}

}  // namespace shardinit
