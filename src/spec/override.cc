#include "spec/override.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/include.h"
#include "spec/keys.h"

namespace shardinit {
namespace {

// Returns the keys that can be set where the spec lacks them: optional ones with a single value.
std::vector<std::string> DefaultedKeys() {
  std::vector<std::string> names;
  for (const SpecKey& key : KeysOf(SpecMapping::kModel)) {
    if (IsScalar(key)) names.emplace_back(key.name);
  }
  return names;
}

// Tells whether the path is a key of `mesh`, and the spec's `mesh` is a mapping.
bool IsOfMesh(const Node& root, std::string_view path) {
  constexpr std::string_view kMesh = "mesh.";
  const Node* mesh = root.Find("mesh");
  if (!path.starts_with(kMesh) || mesh == nullptr || !mesh->IsMap()) return false;
  return FindNamed(KeysOf(SpecMapping::kMesh), path.substr(kMesh.size())) != nullptr;
}

Span PlaceIn(const Source& source, size_t begin, size_t length) {
  return {&source, 1, static_cast<uint32_t>(begin + 1),
          static_cast<uint32_t>(std::max<size_t>(length, 1))};
}

// The way from the root to the value that is set: nodes and the index of the entry taken in each.
using Way = std::vector<std::pair<const Node*, size_t>>;

class Finder {
 public:
  explicit Finder(std::string_view path) : path_(path) {}

  bool Find(const Node& node, size_t begin, Way& way) {
    for (const auto& [index, length] : Matches(node, begin)) {
      way.push_back({&node, index});
      const size_t next = begin + length + 1;
      if (next > path_.size() || Find(*node.entries[index].value, next, way)) return true;
      way.pop_back();
    }
    if (begin >= deepest_) {
      deepest_ = begin;
      stuck_ = &node;
    }
    return false;
  }

  // These tell where the longest match ended, and the node whose entries were the choices there.
  size_t deepest() const { return deepest_; }
  const Node& stuck() const { return *stuck_; }

 private:
  // Returns the entries whose key begins the rest of the path, up to its end or a dot; the longest
  // first.
  std::vector<std::pair<size_t, size_t>> Matches(const Node& node, size_t begin) const {
    std::vector<std::pair<size_t, size_t>> found;
    const std::string_view rest = path_.substr(begin);
    for (size_t i = 0; i < node.entries.size(); ++i) {
      const std::string index = node.IsSequence() ? std::to_string(i) : "";
      const std::string_view key =
          node.IsSequence() ? std::string_view(index) : node.entries[i].key->text;
      if (rest.starts_with(key) && (rest.size() == key.size() || rest[key.size()] == '.'))
        found.push_back({i, key.size()});
    }
    std::ranges::sort(found, [](const auto& a, const auto& b) { return a.second > b.second; });
    return found;
  }

  const std::string_view path_;
  size_t deepest_ = 0;
  const Node* stuck_ = nullptr;
};

// Suggests a key. Keys hold dots too: `embd.weight.init` is compared with `embed.weight` by its
// first two parts.
std::string SuggestKey(std::string_view rest, const std::vector<std::string>& keys) {
  const auto dots = [](std::string_view text) { return std::ranges::count(text, '.'); };
  for (std::string_view prefix = rest; !prefix.empty();) {
    std::vector<std::string> alike;
    std::ranges::copy_if(keys, std::back_inserter(alike),
                         [&](const std::string& key) { return dots(key) == dots(prefix); });
    if (!Closest(prefix, alike).empty()) return DidYouMean(prefix, alike);
    const size_t dot = prefix.rfind('.');
    prefix = prefix.substr(0, dot == std::string_view::npos ? 0 : dot);
  }
  return DidYouMean(rest, keys);
}

// Suggests a whole path for one that lacks its first key: `d` of `vars`, `embed.weight` of
// `modules`.
std::string SuggestWhole(const Node& root, std::string_view rest) {
  for (const Node::Entry& entry : root.entries) {
    if (!entry.value->IsMap()) continue;
    for (const Node::Entry& member : entry.value->entries) {
      const std::string_view key = member.key->text;
      if (rest == key || rest.starts_with(std::string(key) + "."))
        return fmt::format("did you mean {}?", Quote(fmt::format("{}.{}", entry.key->text, rest)));
    }
  }
  return {};
}

void ReportMissing(const Source& source, std::string_view path, const Finder& finder,
                   Diagnostics& diagnostics) {
  const size_t begin = finder.deepest();
  const std::string_view rest = path.substr(begin);
  const Node& node = finder.stuck();
  const std::string where = begin == 0 ? "the spec" : Quote(path.substr(0, begin - 1));
  const Span span = PlaceIn(source, begin, rest.size());
  if (node.IsSequence()) {
    diagnostics.Error(span, fmt::format("{} has no item {}", where, Quote(rest)),
                      fmt::format("it is a list of {}; items count from 0", node.entries.size()));
  } else if (!node.IsMap()) {
    diagnostics.Error(span, fmt::format("{} has no keys, so there is no {}", where, Quote(rest)),
                      fmt::format("it is {}", Describe(node)));
  } else if (rest == "include") {
    diagnostics.Error(span, "`include` cannot be set", "what was included is set by its own keys");
  } else {
    std::vector<std::string> keys;
    for (const Node::Entry& entry : node.entries) keys.emplace_back(entry.key->text);
    if (begin == 0) {
      for (const std::string& key : DefaultedKeys()) {
        if (node.Find(key) == nullptr) keys.push_back(key);
      }
    }
    std::string hint = begin == 0 ? SuggestWhole(node, rest) : std::string();
    if (hint.empty()) hint = SuggestKey(rest, keys);
    diagnostics.Error(span, fmt::format("{} has no key {}", where, Quote(rest)), hint);
  }
}

// Returns `root` with `value` at the end of `way`: nodes on the way are new, the rest is shared.
const Node* Replace(const Way& way, const Node* value, NodeStore& store) {
  for (size_t i = way.size(); i-- > 0;) {
    Node* copy = store.Copy(*way[i].first);
    copy->entries[way[i].second].value = value;
    value = copy;
  }
  return value;
}

// Returns the map with this value of a key, which is last, in place of the one that it had.
const Node* With(const Node& map, Span place, std::string_view key, const Node* value,
                 NodeStore& store) {
  Node* copy = store.Copy(map);
  std::erase_if(copy->entries, [&](const Node::Entry& entry) { return entry.key->text == key; });
  copy->entries.push_back({store.NewScalar(key, place), value});
  return copy;
}

// Parses the value of `path=value`, which starts at `begin`.
const Node* ParseValue(const Source& source, size_t begin, NodeStore& store,
                       Diagnostics& diagnostics) {
  const Node* value = ParseYaml(source, begin, store, diagnostics);
  const std::string_view text = std::string_view(source.text).substr(begin);
  if (value == nullptr) return nullptr;
  if (value->span.line == 0) {  // `path=` means the same as `path:` in a file
    return store.New(Node::Kind::kNull, PlaceIn(source, 0, source.text.size()));
  }
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  const bool flow = text.substr(first).starts_with('{') || text.substr(first).starts_with('[');
  if ((value->IsMap() || value->IsSequence()) && !flow) {
    return diagnostics.Error(PlaceIn(source, begin, text.size()),
                             "a mapping or list on the command line needs brackets",
                             value->IsMap() ? "write `{key: value}`" : "write `[a, b]`");
  }
  return value;
}

const Node* ApplySet(const Node* root, const Source& source, NodeStore& store,
                     Diagnostics& diagnostics) {
  const std::string_view text = source.text;
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    diagnostics.Error(PlaceIn(source, 0, text.size()), "an override has the form `path=value`",
                      "write it as in `--set seed=1`");
    return root;
  }
  const std::string_view path = text.substr(0, equals);
  const Node* value = ParseValue(source, equals + 1, store, diagnostics);
  if (value == nullptr) return root;
  Finder finder(path);
  Way way;
  if (finder.Find(*root, 0, way)) return Replace(way, value, store);
  const std::vector<std::string> defaulted = DefaultedKeys();
  if (Contains(defaulted, path)) {
    return With(*root, PlaceIn(source, 0, path.size()), path, value, store);
  }
  if (IsOfMesh(*root, path)) {
    Way to_mesh;
    Finder("mesh").Find(*root, 0, to_mesh);
    const size_t begin = path.find('.') + 1;
    const std::string_view key = path.substr(begin);
    const Span place = PlaceIn(source, begin, key.size());
    return Replace(to_mesh, With(*root->Find("mesh"), place, key, value, store), store);
  }
  ReportMissing(source, path, finder, diagnostics);
  return root;
}

bool IsClean(const Source& source, Diagnostics& diagnostics) {
  const std::optional<BadText> bad = FindBadText(source.text);
  if (!bad) return true;
  return diagnostics.Error({&source, 0, 0, 0},
                           fmt::format("{} in {}", bad->what, Quote(source.text)));
}

}  // namespace

const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics) {
  for (const std::string& set : sets) {
    const Source* source = diagnostics.Add({"--set", set});
    if (IsClean(*source, diagnostics)) root = ApplySet(root, *source, store, diagnostics);
  }
  return root;
}

const Node* ApplyMesh(const Node* root, const std::string& mesh, NodeStore& store,
                      Diagnostics& diagnostics) {
  if (mesh.empty()) return root;
  const Source& source = *diagnostics.Add({"--mesh", mesh});
  if (!IsClean(source, diagnostics)) return root;
  Way way;
  Finder finder("mesh.axes");
  const Node* axes = nullptr;
  if (finder.Find(*root, 0, way)) axes = way.back().first->entries[way.back().second].value;
  // Where the spec has no mesh, this is its mesh.
  const bool declares = root->Find("mesh") == nullptr;
  if (declares) axes = store.New(Node::Kind::kMap, PlaceIn(source, 0, source.text.size()));
  if (axes == nullptr || !axes->IsMap()) return root;  // That is reported when it is read.
  std::vector<std::string> names;
  for (const Node::Entry& entry : axes->entries) names.emplace_back(entry.key->text);

  Node* chosen = store.Copy(*axes);
  chosen->entries.clear();
  const std::string_view text = source.text;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const Span name_span = PlaceIn(source, begin, name.size());
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      diagnostics.Error(PlaceIn(source, begin, item.size()),
                        "mesh axes have the form `axis=size,axis=size`");
    } else if (chosen->Find(name) != nullptr) {
      diagnostics.Error(name_span, fmt::format("mesh axis {} is given twice", Quote(name)));
    } else if (!declares && axes->Find(name) == nullptr) {
      diagnostics.Error(name_span, fmt::format("the spec declares no mesh axis {}", Quote(name)),
                        DidYouMean(name, names));
    } else {
      const std::string_view size = item.substr(equals + 1);
      chosen->entries.push_back(
          {store.NewScalar(name, name_span),
           store.NewScalar(size, PlaceIn(source, begin + equals + 1, size.size()))});
    }
    begin = end + 1;
  }
  for (const Node::Entry& entry : axes->entries) {
    if (chosen->Find(entry.key->text) == nullptr) {
      chosen->entries.push_back({entry.key, store.NewScalar("1", entry.key->span)});
    }
  }
  if (!declares) return Replace(way, chosen, store);
  const Node* empty = store.New(Node::Kind::kMap, axes->span);
  return With(*root, axes->span, "mesh", With(*empty, axes->span, "axes", chosen, store), store);
}

const Node* ApplySharding(const Node* root, const std::string& sharding, NodeStore& store,
                          Diagnostics& diagnostics) {
  if (sharding.empty()) return root;
  const Source& source = *diagnostics.Add({"--sharding", sharding});
  if (!IsClean(source, diagnostics)) return root;
  const Node* value = ParseValue(source, 0, store, diagnostics);
  return value == nullptr ? root : WithSharding(*root, *value, store, diagnostics);
}

const Node* ApplyTraining(const Node* root, const std::string& option, const std::string& key,
                          const std::string& value, NodeStore& store, Diagnostics& diagnostics) {
  const Source& source = *diagnostics.Add({option, value});
  if (!IsClean(source, diagnostics)) return root;
  const Span place = PlaceIn(source, 0, source.text.size());
  const Node* number = store.NewScalar(source.text, place);
  const Node* training = root->Find("training");
  // A malformed `training` is reported when it is read.
  if (training != nullptr && !training->IsMap() && !training->IsNull()) return root;
  if (training == nullptr || training->IsNull()) training = store.New(Node::Kind::kMap, place);
  training = With(*training, place, store.Keep(key), number, store);
  return With(*root, place, "training", training, store);
}

const Node* ReadOption(const std::string& option, const std::string& text, NodeStore& store,
                       Diagnostics& diagnostics) {
  const Source& source = *diagnostics.Add({option, text});
  if (!IsClean(source, diagnostics)) return nullptr;
  const Node* value = ParseValue(source, 0, store, diagnostics);
  return value != nullptr ? LoadNamedFiles(*value, {}, store, diagnostics) : nullptr;
}

}  // namespace shardinit
