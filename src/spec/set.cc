#include "spec/set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "base/table.h"
#include "base/text.h"
#include "spec/include.h"
#include "spec/option_text.h"
#include "spec/room.h"

namespace shardinit {
namespace {

constexpr std::string_view kNextItem = "+";

// The path from the root to the changed value: nodes, and the index of the entry taken in each.
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
      way_to_stuck_ = way;
    }
    return false;
  }

  // These return where the longest match ended, the node whose entries were the choices there, and
  // the way to this node.
  size_t deepest() const { return deepest_; }
  const Node& stuck() const { return *stuck_; }
  const Way& way_to_stuck() const { return way_to_stuck_; }

 private:
  // Returns the entries whose key matches the start of the remaining path, up to its end or a dot,
  // longest first.
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
  Way way_to_stuck_;
};

// Suggests a key. Keys also contain dots: the first two parts of `embd.weight.init` are compared
// with `embed.weight`.
std::string SuggestKey(std::string_view rest, const std::vector<std::string>& keys) {
  std::map<int64_t, std::vector<std::string>, std::greater<>> by_dots;
  for (const std::string& key : keys) by_dots[std::ranges::count(key, '.')].push_back(key);
  for (const auto& [dots, alike] : by_dots) {
    size_t end = rest.find('.');  // end of the first `dots + 1` parts
    for (int64_t i = 0; i < dots && end != rest.npos; ++i) end = rest.find('.', end + 1);
    const std::string_view prefix = rest.substr(0, end);
    if (std::ranges::count(prefix, '.') != dots) continue;
    if (!Closest(prefix, alike).empty()) return DidYouMean(prefix, alike);
  }
  return DidYouMean(rest.substr(0, rest.find('.')), keys);
}

// Suggests a whole path for a path that omits a key: `vars.d` for `d`, `mesh.axes.fsdp` for
// `mesh.fsdp`. `before` leads to the node and ends with a dot.
std::string SuggestWhole(const Node& node, std::string_view before, std::string_view rest) {
  for (const Node::Entry& entry : node.entries) {
    if (!node.IsMap() || !entry.value->IsMap()) continue;
    for (const Node::Entry& member : entry.value->entries) {
      const std::string_view key = member.key->text;
      if (rest == key || rest.starts_with(std::string(key) + "."))
        return fmt::format("did you mean {}?",
                           Quote(fmt::format("{}{}.{}", before, entry.key->text, rest)));
    }
  }
  return {};
}

// Removes and returns the first part of a path.
std::string_view TakePart(std::string_view* path) {
  const size_t dot = std::min(path->find('.'), path->size());
  const std::string_view part = path->substr(0, dot);
  path->remove_prefix(std::min(dot + 1, path->size()));
  return part;
}

// Returns whether `rest` begins with a misspelling of `key`, compared part by part.
bool IsLikeKey(std::string_view rest, std::string_view key) {
  bool differs = false;
  while (!rest.empty() && !key.empty()) {
    const std::string_view part = TakePart(&rest), wanted = TakePart(&key);
    if (part == wanted) continue;
    if (!IsMisspelt(part, wanted)) return false;
    differs = true;
  }
  return differs;
}

// An override, `path=value` or `+path=value`.
struct Setting {
  const Source& source;
  size_t begin;  // of the path
  std::string_view path;
  const Node* value;

  bool adds_any_name() const { return begin > 0; }
  Span PlaceOf(std::string_view part) const {
    return PlaceIn(source, static_cast<size_t>(part.data() - source.text.data()), part.size());
  }
};

std::vector<WayStep> StepsOf(const Way& way) {
  std::vector<WayStep> steps;
  for (const auto& [node, index] : way) {
    steps.push_back({node, node->IsMap() ? node->entries[index].key->text : std::string_view()});
  }
  return steps;
}

// The point where a path cannot be followed: the rest of the path, and the node, which may be
// absent.
struct StuckPoint {
  std::string_view rest;
  const Node* node;
  AllowedContent room;
};

// Adds a value that the spec lacks.
class Adder {
 public:
  Adder(const Setting& setting, std::vector<WayStep> way, NodeStore& store)
      : setting_(setting), store_(store), way_(std::move(way)) {}

  // Returns a copy of `node` with the value at `rest`, which it lacks, or null if adding is not
  // allowed. `node` is null if it is absent itself.
  const Node* Add(const Node* node, std::string_view rest) {
    if (rest.empty()) return setting_.value;
    if (node != nullptr && node->IsNull()) node = nullptr;
    const AllowedContent room = AllowedContentAt(way_, node);
    stuck_ = {rest, node, room};
    if ((node != nullptr && node->IsScalar()) || way_.size() >= NodeStore::kDeepest) return nullptr;
    const bool is_list = node != nullptr ? node->IsSequence() : room.is_list;
    if (node == nullptr) {
      node = store_.New(is_list ? Node::Kind::kSequence : Node::Kind::kMap, setting_.PlaceOf(rest));
    }
    if (is_list) {
      if (rest != kNextItem && rest != std::to_string(node->entries.size())) return nullptr;
      return Extended(*node, {nullptr, setting_.value}, store_);
    }
    const std::string_view key = KeyIn(*node, room, rest);
    if (key.empty()) return nullptr;
    rest.remove_prefix(std::min(key.size() + 1, rest.size()));
    way_.push_back({node, key});
    const Node* child = Add(nullptr, rest);
    way_.pop_back();
    return child == nullptr ? nullptr : WithEntry(*node, setting_.PlaceOf(key), key, child, store_);
  }

  // Returns the point where nothing may be added.
  const StuckPoint& stuck() const { return stuck_; }

 private:
  // Returns the key at the start of the remaining path; empty if the map may not have it.
  std::string_view KeyIn(const Node& map, const AllowedContent& room, std::string_view rest) const {
    std::string_view after = rest;
    const std::string_view first = TakePart(&after);
    if (FindNamed(room.keys, first) != nullptr) return first;
    if (!room.takes_names) return {};
    if (!setting_.adds_any_name()) {
      for (const Node::Entry& entry : map.entries) {
        if (IsLikeKey(rest, entry.key->text)) return {};
      }
      for (const SpecKey& key : room.keys) {
        if (IsMisspelt(first, key.name)) return {};
      }
    }
    if (!room.has_members) return first;
    // A member is added whole.
    return setting_.value->IsScalar() && way_[0].key == "modules" ? std::string_view() : rest;
  }

  const Setting& setting_;
  NodeStore& store_;
  std::vector<WayStep> way_;
  StuckPoint stuck_;
};

// Suggests the intended path, or explains how to add it.
std::string HintFor(const Setting& setting, std::string_view before, const StuckPoint& stuck) {
  const auto& [rest, node, room] = stuck;
  std::vector<std::string> keys;
  if (node != nullptr) {
    if (std::string hint = SuggestWhole(*node, before, rest); !hint.empty()) return hint;
    for (const Node::Entry& entry : node->entries) keys.emplace_back(entry.key->text);
  }
  const bool is_like_one =
      std::ranges::any_of(keys, [&](const auto& key) { return IsLikeKey(stuck.rest, key); });
  for (const SpecKey& key : room.keys) {
    if (!Contains(keys, key.name)) keys.emplace_back(key.name);
  }
  const std::string hint = SuggestKey(rest, keys);
  if (!room.takes_names) return hint;
  const bool is_whole = !room.has_members || !setting.value->IsScalar();
  if (is_like_one && is_whole) {
    return fmt::format("{} `+{}=…` adds it", hint, Escape(setting.path));
  }
  if (hint.starts_with("did you mean") || is_whole) return hint;
  return fmt::format("a tensor is added as a whole, as in `{}{}={{shape: [8, 16], init: zeros}}`",
                     Escape(before), Escape(rest.substr(0, rest.find('.'))));
}

void ReportMissing(const Setting& setting, const StuckPoint& stuck, Diagnostics& diagnostics) {
  const auto& [rest, node, room] = stuck;
  const std::string_view before = setting.path.substr(0, setting.path.size() - rest.size());
  const std::string where =
      before.empty() ? "the spec" : Quote(before.substr(0, before.size() - 1));
  const Span span = setting.PlaceOf(rest);
  if (node != nullptr ? node->IsSequence() : room.is_list) {
    diagnostics.Error(span, fmt::format("{} has no item {}", where, Quote(rest)),
                      fmt::format("it is a list of {}; items count from 0, and `+` adds one",
                                  node != nullptr ? node->entries.size() : 0));
  } else if (node != nullptr && node->IsScalar()) {
    diagnostics.Error(span, fmt::format("{} has no keys, so there is no {}", where, Quote(rest)),
                      fmt::format("it is {}", Describe(*node)));
  } else if (rest == "include") {
    diagnostics.Error(span, "`include` cannot be set", "set the included file's keys");
  } else {
    diagnostics.Error(span, fmt::format("{} has no key {}", where, Quote(rest)),
                      HintFor(setting, before, stuck));
  }
}

// Returns a copy of the root with `value` at the end of `way`. Nodes on the way are new; all others
// are shared.
const Node* Replace(const Way& way, const Node* value, NodeStore& store) {
  for (size_t i = way.size(); i-- > 0;) {
    value = Replaced(*way[i].first, way[i].second, value, store);
  }
  return value;
}

const Node* ApplySet(const Node* root, const Source& source, NodeStore& store,
                     Diagnostics& diagnostics) {
  const std::string_view text = source.text;
  const size_t begin = text.starts_with('+') ? 1 : 0;
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == begin || text[equals - 1] == '.') {
    diagnostics.Error(PlaceIn(source, 0, text.size()), "an override has the form `path=value`",
                      "write it as in `--set seed=1`");
    return root;
  }
  const Node* value = ParseValue(source, equals + 1, store, diagnostics);
  if (value == nullptr) return root;
  const Setting setting = {source, begin, text.substr(begin, equals - begin), value};
  if (setting.path == "sharding") return WithSharding(*root, *value, store, diagnostics);
  Finder finder(setting.path);
  Way way;
  if (finder.Find(*root, 0, way)) {
    if (!setting.adds_any_name()) return Replace(way, value, store);
    diagnostics.Error(setting.PlaceOf(setting.path),
                      fmt::format("the spec has {} already", Quote(setting.path)),
                      "leave out the `+` to set it");
    return root;
  }
  Adder adder(setting, StepsOf(finder.way_to_stuck()), store);
  const std::string_view rest = setting.path.substr(finder.deepest());
  if (const Node* added = adder.Add(&finder.stuck(), rest)) {
    return Replace(finder.way_to_stuck(), added, store);
  }
  ReportMissing(setting, adder.stuck(), diagnostics);
  return root;
}

}  // namespace

const Node* ApplySets(const Node* root, const std::vector<std::string>& sets, NodeStore& store,
                      Diagnostics& diagnostics) {
  for (const std::string& set : sets) {
    const Source* source = AddOption("--set", set, diagnostics);
    if (source != nullptr) root = ApplySet(root, *source, store, diagnostics);
  }
  return root;
}

}  // namespace shardinit
