// Loads spec files and their includes.
#include "spec/include.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "spec/file_kind.h"
#include "spec/hugging_face.h"
#include "spec/json.h"
#include "spec/merge.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

constexpr size_t kDeepestInclude = 16;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

const Source& AddSource(const std::string& name, std::string text, Diagnostics& diagnostics) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  return *diagnostics.Add({name, std::move(text)});
}

// Reads a file from disk or from configs/. Throws Error as base/file.h does, and for a folder.
std::string ReadAnyFile(const std::string& path, std::string_view wanted = kSpecKind.name) {
  if (IsShipped(path)) return std::string(ReadShipped(path));
  std::error_code error;  // ReadFile reports a bad name
  if (std::filesystem::is_directory(path, error)) {
    if (const auto wrong = WrongKind(path, wanted)) throw *wrong;
  }
  return ReadFile(path, kLargestYaml);
}

// Reads a file that a spec names. Reports an invalid name and returns nullopt. Throws Error if the
// file exists but cannot be read, because that is not the spec's fault.
std::optional<std::string> ReadNamedFile(const Node& name, const std::string& file,
                                         std::string_view hint, std::string_view wanted,
                                         Diagnostics& diagnostics) {
  try {
    RequireLocal(std::string(name.text));
    return ReadAnyFile(file, wanted);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) {
      throw Error(error.code(), error.what(),
                  fmt::format("{}{}it is named at {}", error.hint(),
                              error.hint().empty() ? "" : "; ", PlaceOf(name.span)));
    }
    return diagnostics.Error(name.span, error.what(),
                             error.hint().empty() ? std::string(hint) : error.hint());
  }
}

// Reads and parses the file named by `name`. If that fails, reports it and returns a null node.
const Node* ReadNamedTree(const Node& name, const std::string& file, NodeStore& store,
                          Diagnostics& diagnostics) {
  constexpr std::string_view kWanted = "a sharding";
  const Node* tree = nullptr;
  if (auto text = ReadNamedFile(name, file, "paths are relative to the file that has them", kWanted,
                                diagnostics)) {
    const FileKind* kind = KindOfText(file, *text);
    if (kind != nullptr && kind != &kSpecKind) {
      diagnostics.Error(name.span,
                        fmt::format("{} is {}, not {}", Quote(file), kind->name, kWanted),
                        HintOf(*kind, file));
    } else {
      tree = ParseYaml(AddSource(file, std::move(*text), diagnostics), 0, store, diagnostics);
    }
  }
  if (tree != nullptr && !tree->IsNull()) return tree;
  if (tree != nullptr) diagnostics.Error(name.span, fmt::format("{} is empty", Quote(file)));
  return store.New(Node::Kind::kNull, name.span);
}

struct Parsed {
  const Node* root;
  bool is_config = false;  // a config.json of Hugging Face
};

// Parses a spec or a config.json, which it recognizes by their keys. Reads a spec in JSON as YAML.
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

// Reads the file from the command line. Suggests a shipped file if the name is misspelled.
std::string ReadMain(const std::string& file, std::string_view wanted = kSpecKind.name) {
  try {
    return ReadAnyFile(file, wanted);
  } catch (const Error& error) {
    const std::string hint = Exists(file) ? std::string() : HintForSpec(file);
    if (hint.empty() || !error.hint().empty()) throw;
    throw Error(error.code(), error.what(), hint);
  }
}

// Returns the same path for all names of a file, for comparisons.
std::string Canonical(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return (error ? path : canonical).string();
}

// Checks every file, so that a recipe for another version is never merged.
void CheckVersion(const Node& root, Diagnostics& diagnostics) {
  const Node* version = root.Find("shardinit");
  if (version == nullptr || (version->IsScalar() && version->text == "1" && !version->quoted))
    return;
  diagnostics.Error(version->span,
                    fmt::format("spec version must be 1, not {}", Describe(*version)),
                    "this program reads version 1");
}

// Checks that a sharding does not change values: it must not have keys that affect values, or
// variables of the model.
bool MayShard(const Node& root, const Node& sharding, const Node& value, Diagnostics& diagnostics) {
  for (const Node::Entry& entry : sharding.entries) {
    const std::string_view key = entry.key->text;
    if (key == "shardinit" || key == "vars" || key == "assert" || key == "mesh" ||
        key == "sharding" || key == "rules" || key == "uneven")
      continue;
    return diagnostics.Error(value.span,
                             fmt::format("{} has {}, which does not belong in a sharding",
                                         Quote(value.text), Quote(key)),
                             "name it in `include` if its keys should replace the spec's");
  }
  const Node* own = root.Find("vars");
  const Node* vars = sharding.Find("vars");
  if (own == nullptr || vars == nullptr) return true;
  for (const Node::Entry& entry : vars->entries) {
    const Node* before = own->Find(entry.key->text);
    if (before == nullptr || (before->IsScalar() && before->text == entry.value->text)) continue;
    // A sharding may replace the variables of another shipped sharding, and of a shipped layout,
    // which describe the mesh.
    const Source* source = before->span.source;
    const auto is_in = [&](std::string_view folder) {
      return source->name.find(folder) != std::string::npos;
    };
    if (source != nullptr && IsShipped(source->name) &&
        (is_in(kShippedShardings) || is_in(kShippedLayouts)))
      continue;
    return diagnostics.Error(
        value.span,
        fmt::format("the sharding and the spec both have a variable {}", Quote(entry.key->text)),
        "rename one of them, or name the sharding in `include`, where the last one wins");
  }
  return true;
}

// Returns the map with `change` applied to the value of `key`. Returns other nodes, and maps
// without the key, unchanged.
template <typename F>
const Node* WithValue(const Node* map, std::string_view key, NodeStore& store, F change) {
  for (size_t i = 0; map->IsMap() && i < map->entries.size(); ++i) {
    if (map->entries[i].key->text != key) continue;
    const Node* value = change(*map->entries[i].value);
    if (value == map->entries[i].value) break;
    Node* changed = store.Copy(*map);
    changed->entries[i].value = value;
    return changed;
  }
  return map;
}

// Converts a list of axes, `[{pipe: 2}, {fsdp: 8}]`, to a map that replaces the included file's
// axes.
const Node* ListedAxes(const Node& axes, NodeStore& store, Diagnostics& diagnostics) {
  const bool is_list = axes.IsSequence() && std::ranges::all_of(axes.entries, [](const auto& axis) {
                         return axis.value->IsMap() && axis.value->entries.size() == 1;
                       });
  if (!is_list) return &axes;
  Node* map = store.New(Node::Kind::kMap, axes.span);
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
    diagnostics.Error(only.key->span,
                      fmt::format("mesh axis {} is given twice", Quote(only.key->text)));
    map->incomplete = true;
  }
  return map;
}

// Loads the files named in `sharding`, relative to `folder`, and converts lists of mesh axes.
const Node* WithFiles(const Node* root, const std::filesystem::path& folder, NodeStore& store,
                      Diagnostics& diagnostics) {
  root = WithValue(root, "sharding", store, [&](const Node& sharding) {
    return LoadNamedFiles(sharding, folder, store, diagnostics);
  });
  return WithValue(root, "mesh", store, [&](const Node& mesh) {
    return WithValue(&mesh, "axes", store,
                     [&](const Node& axes) { return ListedAxes(axes, store, diagnostics); });
  });
}

class Loader {
 public:
  Loader(NodeStore& store, Diagnostics& diagnostics, bool is_widened = false)
      : store_(store), diagnostics_(diagnostics), is_widened_(is_widened) {}

  // Loads a config.json without the family's file that it includes.
  const Node* LoadConfig(const std::string& path, const std::optional<std::string>& text,
                         FieldDefaults& defaults) {
    const bool is_input = path == "-";
    const Source& source = AddSource(is_input ? "<stdin>" : path,
                                     text       ? *text
                                     : is_input ? ReadFile(path, kLargestYaml)
                                                : ReadMain(path, kConfigKind.name),
                                     diagnostics_);
    const FileKind* kind = KindOfText(path, source.text);
    if (kind == &kSpecKind) {
      return diagnostics_.Error({&source, 0, 0, 0}, "this is a spec already",
                                "commands take it as it is");
    }
    if (kind != nullptr && kind != &kConfigKind) {
      return diagnostics_.Error({&source, 0, 0, 0},
                                fmt::format("this is {}, not {}", kind->name, kConfigKind.name),
                                HintOf(*kind, source.name));
    }
    const Node* root = ParseJsonTree(source, store_, diagnostics_);
    if (root == nullptr) return nullptr;
    if (root->IsMap()) {
      const Node* spec = Import(*root);
      defaults = defaults_;
      return spec;
    }
    return diagnostics_.Error(root->span,
                              fmt::format("a config.json is an object, not {}", Describe(*root)));
  }

  const Node* LoadMain(const std::string& path, const std::optional<std::string>& text) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (text) {
      if (text->size() > kLargestYaml) ThrowTooLarge(path, kLargestYaml);
      return Load(path, *text, folder);
    }
    if (path == "-") return Load("<stdin>", ReadFile(path, kLargestYaml), "");
    const std::string file = PathOfSpec({}, path);
    open_.push_back({IsShipped(file) ? file : Canonical(file), {}});
    const Node* root = Load(file, ReadMain(file), std::filesystem::path(file).parent_path());
    if (root != nullptr) WarnOfShipped(path, file, {root->span.source, 0, 0, 0});
    return root;
  }

  // Applies the value of `--sharding` to a spec. File names are relative to the working directory.
  // A file may be a spec that shards any model. Its other content, such as its mesh, then also
  // replaces the spec's.
  const Node* LoadSharding(const Node& root, const Node& value) {
    const bool is_word = value.IsScalar() && value.text.find_first_of("./") == value.text.npos;
    const auto shipped =
        is_word ? FindShipped(fmt::format("{}{}", kShippedShardings, value.text)) : std::nullopt;
    const bool is_file = value.IsScalar() && (!is_word || shipped);
    const std::string file = shipped ? *shipped : is_file ? PathOfSpec({}, value.text) : "";
    const Node* tree = is_file ? ReadNamedTree(value, file, store_, diagnostics_)
                               : LoadNamedFiles(value, {}, store_, diagnostics_);
    if (is_file && tree->IsMap() && tree->Find("shardinit") != nullptr) {
      if (tree->Find("modules") != nullptr) {
        diagnostics_.Error(
            value.span, fmt::format("{} is the spec of a model, not a sharding", Quote(value.text)),
            "`shardinit list shardings` shows the shardings that are shipped");
        return &root;
      }
      const Node* sharding = Complete(tree, std::filesystem::path(file).parent_path());
      return MayShard(root, *sharding, value, diagnostics_) ? Merge(root, *sharding) : &root;
    }
    Node* rest = store_.Copy(root);
    std::erase_if(rest->entries, [](const Node::Entry& entry) {
      return entry.key->text == "rules" || entry.key->text == "sharding";
    });
    rest->entries.push_back({store_.NewScalar("sharding", value.span), tree});
    return rest;
  }

 private:
  struct OpenFile {
    std::string canonical;
    Span include;  // where the file was named
  };

  // Notes that a file overrides the shipped spec of the same name, which may surprise the user.
  void WarnOfShipped(std::string_view name, const std::string& file, const Span& span) {
    const auto shipped = IsShipped(file) ? std::nullopt : FindShipped(name);
    if (!shipped) return;
    diagnostics_.Note(span, fmt::format("{} is a file here, which hides the shipped spec {}",
                                        Quote(name), Quote(*shipped)));
  }

  // Checks the version of a parsed spec, and adds the files that it names.
  const Node* Complete(const Node* root, const std::filesystem::path& folder) {
    CheckVersion(*root, diagnostics_);
    root = WithFiles(root, folder, store_, diagnostics_);
    const Node* include = root->Find("include");
    return include == nullptr ? root : WithIncludes(*root, *include, folder);
  }

  const Node* Load(const std::string& name, std::string text, const std::filesystem::path& folder) {
    const Source& source = AddSource(name, std::move(text), diagnostics_);
    const FileKind* kind = KindOfText(name, source.text);
    if (kind != nullptr && kind != &kSpecKind && kind != &kConfigKind) {
      return diagnostics_.Error({&source, 0, 0, 0},
                                fmt::format("this is {}, not a spec", kind->name),
                                HintOf(*kind, name));
    }
    const auto [parsed, is_config] = ParseSpec(source, store_, diagnostics_);
    const Node* root = parsed == nullptr || !is_config ? parsed : Import(*parsed);
    if (root == nullptr) return nullptr;
    if (!root->IsMap()) {
      return diagnostics_.Error(root->span,
                                root->IsNull()
                                    ? "the spec is empty"
                                    : fmt::format("a spec is a mapping, not {}", Describe(*root)),
                                "a spec starts with `shardinit: 1`");
    }
    return Complete(root, folder);
  }

  const Node* Import(const Node& config) {
    const Node* type = FindModelType(config, diagnostics_);
    if (type == nullptr) return nullptr;
    Node* file = store_.Copy(*type);
    file->text = store_.Keep(FamilyFile(type->text));
    const Node* family = Include(*file, {});
    if (family == nullptr) return nullptr;
    const size_t before = diagnostics_.errors();
    const Node* spec = nullptr;
    const ImportedConfig imported =
        ImportConfig(is_widened_ ? Widened(config) : config, *family, store_, diagnostics_);
    defaults_ = imported.defaults;
    for (const Node* part : imported.parts) spec = spec == nullptr ? part : Merge(*spec, *part);
    return diagnostics_.errors() == before ? spec : nullptr;
  }

  // Returns the config of the model whose numbers are not quantized.
  const Node& Widened(const Node& config) {
    Node* wide = store_.Copy(config);
    std::erase_if(wide->entries, [](const Node::Entry& entry) {
      return entry.key->text == "quantization_config";
    });
    for (Node::Entry& entry : wide->entries) {
      if (entry.key->text == "text_config" && entry.value->IsMap()) {
        entry.value = &Widened(*entry.value);
      }
    }
    return *wide;
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
      // The missing file may contain the keys that are absent here.
      rest->incomplete |= included == nullptr || included->incomplete;
      if (included != nullptr) merged = merged == nullptr ? included : Merge(*merged, *included);
    };
    if (include.IsSequence()) {
      for (const Node::Entry& entry : include.entries) add(*entry.value);
    } else {
      add(include);
    }
    return merged == nullptr ? rest : Merge(*merged, *rest);
  }

  const Node* Include(const Node& path, const std::filesystem::path& folder) {
    if (!path.IsScalar() || path.text.empty()) {
      return diagnostics_.Error(
          path.span, fmt::format("`include` takes the path of a file, not {}", Describe(path)),
          "write `include: base.yaml` or `include: [a.yaml, b.yaml]`");
    }
    const std::string file = PathOfSpec(folder, path.text);
    WarnOfShipped(path.text, file, path.span);
    const std::string canonical = IsShipped(file) ? file : Canonical(file);
    for (const OpenFile& open : open_) {
      if (open.canonical != canonical) continue;
      diagnostics_.Error(path.span, fmt::format("{} includes itself", Quote(file)));
      if (open.include.source != nullptr) diagnostics_.Note(open.include, "first included here");
      return nullptr;
    }
    if (open_.size() > kDeepestInclude) {
      return diagnostics_.Error(
          path.span, fmt::format("files are included more than {} levels deep", kDeepestInclude));
    }
    // A file is loaded once, however often it is included.
    const auto [known, is_new] = loaded_.try_emplace(canonical, nullptr);
    if (!is_new) return known->second;
    auto text = ReadNamedFile(path, file, "paths are relative to the file that includes them",
                              kSpecKind.name, diagnostics_);
    if (!text) return nullptr;
    open_.push_back({canonical, path.span});
    const Node* root = Load(file, std::move(*text), std::filesystem::path(file).parent_path());
    open_.pop_back();
    return loaded_[canonical] = root;
  }

  const Node* Merge(const Node& base, const Node& over) {
    return MergeSpecs(base, over, store_, diagnostics_);
  }

  NodeStore& store_;
  Diagnostics& diagnostics_;
  bool is_widened_;
  FieldDefaults defaults_;
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
  const Node* tree = ReadNamedTree(value, PathOfSpec(folder, value.text), store, diagnostics);
  if (!tree->IsMap() || tree->Find("shardinit") == nullptr) return tree;
  diagnostics.Error(value.span,
                    fmt::format("{} is a spec, not a value of `sharding`", Quote(value.text)),
                    fmt::format("name it in `include`: `include: [{}]`", value.text));
  return store.New(Node::Kind::kNull, value.span);
}

const Node* WithSharding(const Node& root, const Node& value, NodeStore& store,
                         Diagnostics& diagnostics) {
  return Loader(store, diagnostics).LoadSharding(root, value);
}

const Node* LoadTree(const std::string& path, const std::optional<std::string>& text,
                     NodeStore& store, Diagnostics& diagnostics, bool is_widened) {
  return Loader(store, diagnostics, is_widened).LoadMain(path, text);
}

const Node* LoadConfigJson(const std::string& path, const std::optional<std::string>& text,
                           NodeStore& store, Diagnostics& diagnostics, FieldDefaults& defaults) {
  return Loader(store, diagnostics).LoadConfig(path, text, defaults);
}

}  // namespace shardinit
