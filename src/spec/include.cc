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
    if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
    const Source* source = diagnostics_.Add({name, std::move(text)});
    const Node* root = ParseYaml(*source, 0, store_, diagnostics_);
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
    const Node* include = root->Find("include");
    return include == nullptr ? root : WithIncludes(*root, *include, folder);
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
    if (&base == &over || !base.IsMap() || !over.IsMap()) return &over;
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
    for (size_t i = 0; i < base.entries.size(); ++i) places[base.entries[i].key->text] = i;
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

  const Node* MergeValue(const Node& base, const Node::Entry& entry, const Node& map,
                         Context context) {
    const std::string_view key = entry.key->text;
    if (context == Context::kRoot) {
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

const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics) {
  return Loader(store, diagnostics).LoadMain(path, text);
}

}  // namespace shardinit
