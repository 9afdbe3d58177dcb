// The table of sharding languages; reads a spec's `sharding` as a stack of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/scope.h"
#include "graph/sharded/sharding.h"
#include "spec/reader.h"
#include "spec/yaml.h"

namespace shardinit {

// The state shared by all languages of a spec. It outlives them.
struct LanguageContext {
  LanguageContext(Building& building, const Mesh& mesh);

  // Evaluates a key of the tree. The key may use `vars`, and the sizes of the mesh as `mesh_NAME`.
  std::optional<int64_t> Integer(const Node::Entry& entry, int64_t low, int64_t high);
  std::optional<int64_t> Integer(const Expr& expr, int64_t low, int64_t high,
                                 std::string_view what);
  // Returns the mesh axes that a key names (one or a list), or `fallback` if `node` is null.
  // Reports names that the mesh does not have; a wrong `fallback` is reported at `place`.
  std::vector<int> Axes(const Node* node, std::string_view fallback, Span place);
  // Reads path patterns from a text or a list of texts.
  std::vector<Located<std::string>> Patterns(const Node::Entry& entry);
  // Reports keys that are not in `keys`, and a node that is not a mapping.
  bool CheckKeys(const Node& map, std::string_view what, const std::vector<std::string>& keys);
  Reported Error(Span span, std::string message, std::string hint = {}) {
    return building.diagnostics.Error(span, std::move(message), std::move(hint));
  }

  Building& building;
  const Mesh& mesh;
  SpecScope names;
  SpecReader reader;
  // If true, errors hide some tensors, so a pattern without a match may be right.
  bool lacks_tensors = false;
};

// A language that reports only the first of its tensors' errors.
class OnceLanguage : public ShardingLanguage {
 protected:
  explicit OnceLanguage(LanguageContext& context) : context_(context) {}
  Reported ReportOnce(Span span, std::string message, std::string hint = {}) {
    if (!is_reported_) context_.Error(span, std::move(message), std::move(hint));
    is_reported_ = true;
    return {};
  }

  LanguageContext& context_;
  bool is_reported_ = false;
};

// One entry `{NAME: VALUE}`, or only the word NAME.
struct LanguageText {
  Span key;           // place of the name
  const Node* value;  // null: only the word
};

struct LanguageRow {
  std::string_view name;
  std::string_view description;  // a phrase for editors
  bool is_word;                  // the name may appear without a value
  std::unique_ptr<ShardingLanguage> (*read)(LanguageContext& context, const LanguageText& text);
};

std::span<const LanguageRow* const> Languages();

// Reads `rules` or `sharding` and reports errors. The stack is empty if the spec has neither.
LanguageStack ReadLanguages(Building& building, const Mesh& mesh);

}  // namespace shardinit
