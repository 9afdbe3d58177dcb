#include "spec/include.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace shardinit {
namespace {

constexpr size_t kDeepestInclude = 16;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

enum class Context { kRoot, kInits, kTensor, kOther };

const Node* Parse(const std::string& name, std::string text, NodeStore& store,
                  Diagnostics& diagnostics) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return ParseYaml(*diagnostics.Add({name, std::move(text)}), 0, store, diagnostics);
}

class Loader {
 public:
  Loader(NodeStore& store, Diagnostics& diagnostics) : store_(store), diagnostics_(diagnostics) {}

  const Node* LoadMain(const std::string& path, const std::optional<std::string>& text) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (text) {
      if (text->size() > kLargestYaml) ThrowTooLarge(path, kLargestYaml);
      return Load(path, *text, folder);
    }
    if (path == "-") return Load("<stdin>", ReadFile(path, kLargestYaml), "");
    open_.push_back({Canonical(path), {}});
    return Load(path, ReadFile(path, kLargestYaml), folder);
  }

 private:
  struct OpenFile {
    std::string canonical;
    Span include;  // Where it was named.
  };

  // Two names of one file must compare equal.
  static std::string Canonical(const std::filesystem::path& path) {
    std::error_code error;
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
    return (error ? path : canonical).string();
  }

  const Node* Load(const std::string& name, std::string text, const std::filesystem::path& folder) {
    const Node* root = Parse(name, std::move(text), store_, diagnostics_);
    if (root == nullptr) return nullptr;
    if (!root->IsMap()) {
      diagnostics_.Error(root->span,
                         root->IsNull()
                             ? "the spec is empty"
                             : fmt::format("a spec is a mapping, not {}", Describe(*root)),
                         "a spec starts with `shardinit: 1`");
      return nullptr;
    }
    CheckVersion(*root);
    root = WithFiles(root, folder);
    const Node* include = root->Find("include");
    return include == nullptr ? root : WithIncludes(*root, *include, folder);
  }

  // Names of files in `sharding` are relative to this one.
  const Node* WithFiles(const Node* root, const std::filesystem::path& folder) {
    root = WithValue(root, "sharding", [&](const Node& sharding) {
      return LoadShardingFiles(sharding, folder, store_, diagnostics_);
    });
    return WithValue(root, "mesh", [&](const Node& mesh) {
      return WithValue(&mesh, "axes", [&](const Node& axes) { return ListedAxes(axes); });
    });
  }

  // `[{pipe: 2}, {fsdp: 8}]` as a map that is not merged with that of an included file.
  const Node* ListedAxes(const Node& axes) {
    const bool is_list =
        axes.IsSequence() &&
        std::all_of(axes.entries.begin(), axes.entries.end(), [](const auto& axis) {
          return axis.value->IsMap() && axis.value->entries.size() == 1;
        });
    if (!is_list) return &axes;
    Node* map = store_.New();
    map->kind = Node::Kind::kMap;
    map->whole = true;
    map->span = axes.span;
    map->height = axes.height - 1;
    map->size = axes.size;
    for (const Node::Entry& axis : axes.entries) {
      const Node::Entry& only = axis.value->entries[0];
      map->incomplete |= axis.value->incomplete;
      if (map->Find(only.key->text) == nullptr) {
        map->entries.push_back(only);
        continue;
      }
      diagnostics_.Error(only.key->span,
                         fmt::format("mesh axis {} is given twice", Quote(only.key->text)));
      map->incomplete = true;
    }
    return map;
  }

  // The map with what `change` makes of the value of `key`, if it is one that has it.
  template <typename F>
  const Node* WithValue(const Node* map, std::string_view key, F change) {
    for (size_t i = 0; map->IsMap() && i < map->entries.size(); ++i) {
      if (map->entries[i].key->text != key) continue;
      const Node* value = change(*map->entries[i].value);
      if (value == map->entries[i].value) break;
      Node* changed = store_.New();
      *changed = *map;
      changed->entries[i].value = value;
      return changed;
    }
    return map;
  }

  // In every file, so that a recipe for another version is never merged.
  void CheckVersion(const Node& root) {
    const Node* version = root.Find("shardinit");
    if (version == nullptr || (version->IsScalar() && version->text == "1" && !version->quoted))
      return;
    diagnostics_.Error(version->span,
                       fmt::format("spec version must be 1, not {}", Describe(*version)),
                       "this program reads version 1");
  }

  const Node* WithIncludes(const Node& root, const Node& include,
                           const std::filesystem::path& folder) {
    Node* rest = store_.New();
    *rest = root;
    std::erase_if(rest->entries, [&](const Node::Entry& entry) {
      return entry.value == &include && entry.key->text == "include";
    });
    const Node* merged = nullptr;
    const auto add = [&](const Node& path) {
      const Node* included = Include(path, folder);
      // What is not here may stand in a file that is not there.
      rest->incomplete |= included == nullptr || included->incomplete;
      if (included != nullptr)
        merged = merged == nullptr ? included : Merge(*merged, *included, Context::kRoot);
    };
    if (include.IsSequence()) {
      for (const Node::Entry& entry : include.entries) add(*entry.value);
    } else {
      add(include);
    }
    return merged == nullptr ? rest : Merge(*merged, *rest, Context::kRoot);
  }

  const Node* Include(const Node& path, const std::filesystem::path& folder) {
    if (!path.IsScalar() || path.text.empty()) {
      diagnostics_.Error(path.span,
                         fmt::format("`include` takes the path of a file, not {}", Describe(path)),
                         "write `include: base.yaml` or `include: [a.yaml, b.yaml]`");
      return nullptr;
    }
    const std::filesystem::path file = folder / path.text;
    const std::string canonical = Canonical(file);
    for (const OpenFile& open : open_) {
      if (open.canonical != canonical) continue;
      diagnostics_.Error(path.span, fmt::format("{} includes itself", Quote(file.string())));
      if (open.include.source != nullptr) diagnostics_.Note(open.include, "first included here");
      return nullptr;
    }
    if (open_.size() > kDeepestInclude) {
      diagnostics_.Error(
          path.span, fmt::format("files are included more than {} levels deep", kDeepestInclude));
      return nullptr;
    }
    // Once per file, however often it is included.
    const auto [known, is_new] = loaded_.try_emplace(canonical, nullptr);
    if (!is_new) return known->second;
    std::string text;
    try {
      text = ReadFile(file.string(), kLargestYaml);
    } catch (const Error& error) {
      diagnostics_.Error(path.span, error.what(),
                         error.hint().empty() ? "paths are relative to the file that includes them"
                                              : error.hint());
      return nullptr;
    }
    open_.push_back({canonical, path.span});
    const Node* root = Load(file.string(), std::move(text), file.parent_path());
    open_.pop_back();
    return loaded_[canonical] = root;
  }

  const Node* Merge(const Node& base, const Node& over, Context context) {
    if (&base == &over || !base.IsMap() || !over.IsMap() || over.whole) return &over;
    if (!store_.Count(base.entries.size() + over.entries.size())) {
      diagnostics_.Error(
          over.span,
          fmt::format("the spec and its includes have more than {} values", NodeStore::kMostNodes));
      diagnostics_.ThrowIfErrors();
    }
    std::unordered_map<std::string_view, size_t> places;
    Node* merged = store_.New();
    *merged = over;
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

  // `rules` and `sharding` say the same thing in two ways.
  static void DropReplaced(const Node& over, Node* merged) {
    for (const auto& [key, other] : {std::pair{"rules", "sharding"}, {"sharding", "rules"}}) {
      if (over.Find(key) == nullptr || over.Find(other) != nullptr) continue;
      std::erase_if(merged->entries, [&, name = std::string_view(other)](const Node::Entry& entry) {
        return entry.key->text == name;
      });
    }
  }

  const Node* MergeValue(const Node& base, const Node::Entry& entry, const Node& map,
                         Context context) {
    const std::string_view key = entry.key->text;
    if (context == Context::kRoot) {
      if (key == "sharding") return entry.value;
      return Merge(base, *entry.value, key == "init" ? Context::kInits : Context::kOther);
    }
    const bool is_initializer =
        context == Context::kInits ||
        (key == "init" && (map.Find("shape") != nullptr || entry.value->entries.size() == 1));
    if (is_initializer || key == "repeat") return entry.value;
    return Merge(base, *entry.value, Context::kOther);
  }

  NodeStore& store_;
  Diagnostics& diagnostics_;
  std::vector<OpenFile> open_;
  std::map<std::string, const Node*> loaded_;
};

}  // namespace

const Node* LoadShardingFiles(const Node& value, const std::filesystem::path& folder,
                              NodeStore& store, Diagnostics& diagnostics) {
  if (value.IsSequence()) {
    Node* list = store.New();
    *list = value;
    for (Node::Entry& item : list->entries) {
      item.value = LoadShardingFiles(*item.value, folder, store, diagnostics);
    }
    return list;
  }
  if (!value.IsScalar() || value.text.find_first_of("./") == value.text.npos) return &value;
  const std::string file = (folder / value.text).string();
  const Node* tree = nullptr;
  try {
    tree = Parse(file, ReadFile(file, kLargestYaml), store, diagnostics);
  } catch (const Error& error) {
    diagnostics.Error(
        value.span, error.what(),
        error.hint().empty() ? "paths are relative to the file that has them" : error.hint());
  }
  if (tree != nullptr && !tree->IsNull()) return tree;
  if (tree != nullptr) diagnostics.Error(value.span, fmt::format("{} is empty", Quote(file)));
  Node* null = store.New();
  null->span = value.span;
  return null;
}

const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics) {
  return Loader(store, diagnostics).LoadMain(path, text);
}

}  // namespace shardinit
