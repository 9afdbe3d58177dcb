#include "spec/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace shardinit {
namespace {

enum class Context { kRoot, kInits, kOther };

class Merger {
 public:
  Merger(NodeStore& store, Diagnostics& diagnostics) : store_(store), diagnostics_(diagnostics) {}

  const Node* Merge(const Node& base, const Node& over, Context context) {
    if (&base == &over || !base.IsMap() || !over.IsMap() || over.whole) return &over;
    if (!store_.Count(base.entries.size() + over.entries.size())) {
      diagnostics_.Error(
          over.span,
          fmt::format("the spec and its includes have more than {} values", NodeStore::kMostNodes));
      diagnostics_.ThrowIfErrors();
    }
    std::unordered_map<std::string_view, size_t> places;
    Node* merged = store_.Copy(over);
    merged->entries = base.entries;
    merged->incomplete |= base.incomplete;
    merged->whole = base.whole;
    if (context == Context::kRoot) DropReplaced(over, merged);
    for (size_t i = 0; i < merged->entries.size(); ++i) places[merged->entries[i].key->text] = i;
    for (const Node::Entry& entry : over.entries) {
      const auto place = places.find(entry.key->text);
      if (place == places.end()) {
        merged->entries.push_back(entry);
        continue;
      }
      Node::Entry& slot = merged->entries[place->second];
      slot = {entry.key, MergeValue(*slot.value, entry, over, context)};
    }
    return merged;
  }

 private:
  // If `over` has only one of `rules` and `sharding`, drops the other, because they specify the
  // same thing.
  static void DropReplaced(const Node& over, Node* merged) {
    for (const auto& [key, other] : {std::pair{"rules", "sharding"}, {"sharding", "rules"}}) {
      if (over.Find(key) == nullptr || over.Find(other) != nullptr) continue;
      std::erase_if(merged->entries, [&, name = std::string_view(other)](const Node::Entry& entry) {
        return entry.key->text == name;
      });
    }
  }

  // Returns the entries of both lists without duplicates: a file may be included by several paths.
  const Node* Joined(const Node& base, const Node& over) {
    if (!base.IsSequence() || !over.IsSequence()) return &over;
    Node* joined = store_.Copy(over);
    joined->entries = base.entries;
    for (const Node::Entry& entry : over.entries) {
      if (std::ranges::none_of(base.entries,
                               [&](const auto& known) { return known.value == entry.value; })) {
        joined->entries.push_back(entry);
      }
    }
    return joined;
  }

  const Node* MergeValue(const Node& base, const Node::Entry& entry, const Node& map,
                         Context context) {
    const std::string_view key = entry.key->text;
    if (context == Context::kRoot) {
      if (key == "sharding") return entry.value;
      if (key == "assert") return Joined(base, *entry.value);
      // The config of an adapter does not inherit fields of its model's config.
      if (key == "config" && entry.value->Find("peft_type") != nullptr) return entry.value;
      return Merge(base, *entry.value, key == "init" ? Context::kInits : Context::kOther);
    }
    const bool is_initializer =
        context == Context::kInits ||
        (key == "init" && (map.Find("shape") != nullptr || entry.value->entries.size() == 1 ||
                           entry.value->Find("source") != nullptr));
    if (is_initializer || key == "repeat") return entry.value;
    return Merge(base, *entry.value, Context::kOther);
  }

  NodeStore& store_;
  Diagnostics& diagnostics_;
};

}  // namespace

const Node* MergeSpecs(const Node& base, const Node& over, NodeStore& store,
                       Diagnostics& diagnostics) {
  return Merger(store, diagnostics).Merge(base, over, Context::kRoot);
}

}  // namespace shardinit
