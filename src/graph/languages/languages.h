// The table of sharding languages, and `sharding` of a spec read as a stack of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/scope.h"
#include "graph/sharding.h"
#include "spec/reader.h"
#include "spec/yaml.h"

namespace shardinit {

// What all languages of a spec are made of, and outlives them.
struct LanguageContext {
  LanguageContext(Building& building, const Mesh& mesh);

  // Of a key of the tree, which may use `vars` and the sizes of the mesh, as `mesh_NAME`.
  std::optional<int64_t> Integer(const Node::Entry& entry, int64_t low, int64_t high);
  std::optional<int64_t> Integer(const Expr& expr, int64_t low, int64_t high,
                                 std::string_view what);
  // Mesh axes that a key names, one or a list; `fallback` if `node` is null. Reports names that
  // the mesh does not have, at `place` if it is the fallback's.
  std::vector<int> Axes(const Node* node, std::string_view fallback, Span place);
  // A text or a list of texts: patterns of paths.
  std::vector<Located<std::string>> Patterns(const Node::Entry& entry);
  // Reports keys other than these, and what is no mapping at all.
  bool CheckKeys(const Node& map, std::string_view what, const std::vector<std::string>& keys);
  void Error(Span span, std::string message, std::string hint = {}) {
    building.diagnostics.Error(span, std::move(message), std::move(hint));
  }

  Building& building;
  const Mesh& mesh;
  SpecScope names;
  SpecReader reader;
  bool lacks_tensors = false;  // Mistakes hide some: who names none may be right.
};

// Of `{NAME: VALUE}`, or of the word NAME alone.
struct LanguageText {
  Span key;           // The name's place.
  const Node* value;  // Null: the word stands alone.
};

struct LanguageRow {
  std::string_view name;
  std::string_view description;  // For editors: a phrase.
  bool is_word;                  // Whether the name may stand alone.
  std::unique_ptr<ShardingLanguage> (*read)(LanguageContext& context, const LanguageText& text);
};

std::span<const LanguageRow* const> Languages();

// `rules`, or `sharding`; nothing, if the spec has neither. Reports mistakes.
LanguageStack ReadLanguages(Building& building, const Mesh& mesh);

}  // namespace shardinit
