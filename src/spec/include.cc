#include "spec/include.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/embedded.h"
#include "base/error.h"
#include "base/file.h"
#include "base/local_path.h"
#include "base/suggest.h"
#include "base/text.h"
#include "spec/hugging_face.h"
#include "spec/json.h"

namespace shardinit {
namespace {

constexpr size_t kDeepestInclude = 16;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

enum class Context { kRoot, kInits, kTensor, kOther };

const Source& AddSource(const std::string& name, std::string text, Diagnostics& diagnostics) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return *diagnostics.Add({name, std::move(text)});
}

bool IsShipped(std::string_view path) {
  return path.starts_with(kShippedFolder) && path.substr(kShippedFolder.size()).starts_with('/');
}

// Returns the path of the file that is called `name` in a file of `folder`.
std::string PathIn(const std::filesystem::path& folder, std::string_view name) {
  const std::filesystem::path path = IsShipped(name) ? std::filesystem::path(name) : folder / name;
  return IsShipped(path.string()) ? path.lexically_normal().string() : path.string();
}

// Reads a file of the disk or of configs/. Throws Error as base/file.h does.
std::string ReadAnyFile(const std::string& path) {
  if (!IsShipped(path)) return ReadFile(path, kLargestYaml);
  std::vector<std::string> paths;
  for (const EmbeddedFile& file : ShippedFiles()) {
    paths.push_back(fmt::format("{}/{}", kShippedFolder, file.path));
    if (paths.back() == path) return std::string(file.text);
  }
  throw Error(ExitCode::kUsage, fmt::format("shardinit has no file {}", Quote(path)),
              DidYouMean(path, paths));
}

// Reads a file that a spec names; reports a name that is wrong, and returns nothing. Throws Error
// if the file is there and cannot be read, which is no mistake of the spec.
std::optional<std::string> ReadNamedFile(const Node& name, const std::string& file,
                                         std::string_view hint, Diagnostics& diagnostics) {
  try {
    RequireLocal(std::string(name.text));
    return ReadAnyFile(file);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) {
      throw Error(error.code(), error.what(),
                  fmt::format("{}{}it is named at {}", error.hint(),
                              error.hint().empty() ? "" : "; ", PlaceOf(name.span)));
    }
    diagnostics.Error(name.span, error.what(),
                      error.hint().empty() ? std::string(hint) : error.hint());
    return std::nullopt;
  }
}

struct Parsed {
  const Node* root;
  bool is_config = false;  // a config.json of Hugging Face
};

// Parses a spec or a config.json, which its keys tell apart. A spec in JSON is read as YAML.
Parsed ParseSpec(const Source& source, NodeStore& store, Diagnostics& diagnostics) {
  const std::string_view text = source.text;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') {
    Diagnostics of_json;
    const Node* json = ParseJsonTree(source, store, of_json);
    if (json != nullptr && IsConfigJson(*json)) return {json, true};
    const bool is_config =
        text.find("\"model_type\"") != text.npos && text.find("\"shardinit\"") == text.npos;
    if (json == nullptr && is_config) return {ParseJsonTree(source, store, diagnostics), true};
  }
  return {ParseYaml(source, 0, store, diagnostics)};
}

class Loader {
 public:
  Loader(NodeStore& store, Diagnostics& diagnostics) : store_(store), diagnostics_(diagnostics) {}

  // Loads a config.json without the family's file that it includes.
  const Node* LoadConfig(const std::string& path) {
    const Source& source =
        AddSource(path == "-" ? "<stdin>" : path, ReadFile(path, kLargestYaml), diagnostics_);
    const Node* root = ParseJsonTree(source, store_, diagnostics_);
    if (root == nullptr) return nullptr;
    if (!root->IsMap()) {
      diagnostics_.Error(root->span,
                         fmt::format("a config.json is an object, not {}", Describe(*root)));
      return nullptr;
    }
    if (root->Find("shardinit") != nullptr) {
      diagnostics_.Error(root->span, "this is a spec already", "commands take it as it is");
      return nullptr;
    }
    return Import(*root);
  }

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
    Span include;  // where the file was named
  };

  // Returns one path for all names of a file, so that they compare equal.
  static std::string Canonical(const std::filesystem::path& path) {
    std::error_code error;
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
    return (error ? path : canonical).string();
  }

  const Node* Load(const std::string& name, std::string text, const std::filesystem::path& folder) {
    const auto [parsed, is_config] =
        ParseSpec(AddSource(name, std::move(text), diagnostics_), store_, diagnostics_);
    const Node* root = parsed == nullptr || !is_config ? parsed : Import(*parsed);
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

  const Node* Import(const Node& config) {
    const Node* type = FindModelType(config, diagnostics_);
    if (type == nullptr) return nullptr;
    Node* file = store_.Copy(*type);
    file->text = store_.Keep(FamilyFile(type->text));
    const Node* family = Include(*file, {});
    if (family == nullptr) return nullptr;
    const size_t before = diagnostics_.all().size();
    const Node* spec = nullptr;
    for (const Node* part : ImportConfig(config, *family, store_, diagnostics_))
      spec = spec == nullptr ? part : Merge(*spec, *part, Context::kRoot);
    return diagnostics_.all().size() == before ? spec : nullptr;
  }

  // Replaces names of files in `sharding`, which are relative to `folder`, and lists of mesh axes.
  const Node* WithFiles(const Node* root, const std::filesystem::path& folder) {
    root = WithValue(root, "sharding", [&](const Node& sharding) {
      return LoadNamedFiles(sharding, folder, store_, diagnostics_);
    });
    return WithValue(root, "mesh", [&](const Node& mesh) {
      return WithValue(&mesh, "axes", [&](const Node& axes) { return ListedAxes(axes); });
    });
  }

  // Turns a list of axes, `[{pipe: 2}, {fsdp: 8}]`, into a map that replaces an included file's.
  const Node* ListedAxes(const Node& axes) {
    const bool is_list =
        axes.IsSequence() &&
        std::all_of(axes.entries.begin(), axes.entries.end(), [](const auto& axis) {
          return axis.value->IsMap() && axis.value->entries.size() == 1;
        });
    if (!is_list) return &axes;
    Node* map = store_.New(Node::Kind::kMap, axes.span);
    map->whole = true;
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

  // Returns the map with `change` applied to the value of `key`, if it is a map that has the key.
  template <typename F>
  const Node* WithValue(const Node* map, std::string_view key, F change) {
    for (size_t i = 0; map->IsMap() && i < map->entries.size(); ++i) {
      if (map->entries[i].key->text != key) continue;
      const Node* value = change(*map->entries[i].value);
      if (value == map->entries[i].value) break;
      Node* changed = store_.Copy(*map);
      changed->entries[i].value = value;
      return changed;
    }
    return map;
  }

  // Checks every file, so that a recipe for another version is never merged.
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
    Node* rest = store_.Copy(root);
    std::erase_if(rest->entries, [&](const Node::Entry& entry) {
      return entry.value == &include && entry.key->text == "include";
    });
    const Node* merged = nullptr;
    const auto add = [&](const Node& path) {
      const Node* included = Include(path, folder);
      // A key that is absent here may stand in the missing file.
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
    const std::string file = PathIn(folder, path.text);
    const std::string canonical = IsShipped(file) ? file : Canonical(file);
    for (const OpenFile& open : open_) {
      if (open.canonical != canonical) continue;
      diagnostics_.Error(path.span, fmt::format("{} includes itself", Quote(file)));
      if (open.include.source != nullptr) diagnostics_.Note(open.include, "first included here");
      return nullptr;
    }
    if (open_.size() > kDeepestInclude) {
      diagnostics_.Error(
          path.span, fmt::format("files are included more than {} levels deep", kDeepestInclude));
      return nullptr;
    }
    // A file is loaded once, however often it is included.
    const auto [known, is_new] = loaded_.try_emplace(canonical, nullptr);
    if (!is_new) return known->second;
    auto text = ReadNamedFile(path, file, "paths are relative to the file that includes them",
                              diagnostics_);
    if (!text) return nullptr;
    open_.push_back({canonical, path.span});
    const Node* root = Load(file, std::move(*text), std::filesystem::path(file).parent_path());
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

  // Drops the other one of `rules` and `sharding`, which say the same thing in two ways.
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

const Node* LoadNamedFiles(const Node& value, const std::filesystem::path& folder, NodeStore& store,
                           Diagnostics& diagnostics) {
  if (value.IsSequence()) {
    Node* list = store.Copy(value);
    for (Node::Entry& item : list->entries) {
      item.value = LoadNamedFiles(*item.value, folder, store, diagnostics);
    }
    return list;
  }
  if (!value.IsScalar() || value.text.find_first_of("./") == value.text.npos) return &value;
  const std::string file = PathIn(folder, value.text);
  const Node* tree = nullptr;
  if (auto text =
          ReadNamedFile(value, file, "paths are relative to the file that has them", diagnostics)) {
    tree = ParseYaml(AddSource(file, std::move(*text), diagnostics), 0, store, diagnostics);
  }
  if (tree != nullptr && !tree->IsNull()) return tree;
  if (tree != nullptr) diagnostics.Error(value.span, fmt::format("{} is empty", Quote(file)));
  return store.New(Node::Kind::kNull, value.span);
}

const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics) {
  return Loader(store, diagnostics).LoadMain(path, text);
}

const Node* LoadConfigJson(const std::string& path, NodeStore& store, Diagnostics& diagnostics) {
  return Loader(store, diagnostics).LoadConfig(path);
}

}  // namespace shardinit
