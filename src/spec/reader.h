// Reads each kind of value in a spec's tree. Each function reports a value of the wrong kind and
// names the key.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/diagnostics.h"
#include "spec/spec.h"
#include "spec/yaml.h"

namespace shardinit {

// Messages use this word for an entry of `vars`.
inline constexpr std::string_view kVariable = "variable";

class SpecReader {
 public:
  // `is_part` means that the rest of the spec is absent, so missing keys are not errors.
  SpecReader(bool is_part, Diagnostics& diagnostics)
      : diagnostics_(diagnostics), is_part_(is_part) {}

  // The readers return null, nullopt or an empty value if the value is invalid.
  ExprPtr ReadExpr(const Node::Entry& entry, std::string_view what = {});
  // Reads an expression that may also be `true` or `false`.
  ExprPtr ReadCondition(const Node::Entry& entry);
  // Reads a mapping of names to expressions. An entry whose name is invalid stays in the result,
  // with an empty name.
  std::vector<Named<ExprPtr>> ReadExprs(const Node::Entry& entry, std::string_view what);
  // Reads the value of a variable: an expression, `{text: attention}`, or a list of expressions or
  // texts.
  VarSpec ReadVariable(const Node::Entry& entry);
  // Reads a mapping of names to such values.
  std::vector<Named<VarSpec>> ReadVariables(const Node::Entry& entry, std::string_view what);
  // Reads a list of expressions; `what` names one of them.
  std::vector<ExprPtr> ReadExprList(const Node::Entry& entry, std::string_view what);
  // Reads `{variable: count}`, the value of a `for`. A `repeat` may have a list as count.
  std::optional<Named<ExprPtr>> ReadCount(const Node::Entry& entry);
  std::optional<Named<VarSpec>> ReadRepeat(const Node::Entry& entry);
  std::optional<Located<std::string>> ReadText(const Node::Entry& entry);
  std::optional<Located<std::string>> ReadChoice(const Node::Entry& entry,
                                                 std::span<const std::string_view> choices);
  std::optional<UnevenSpec> ReadUneven(const Node::Entry& entry);
  Located<std::string> ReadIdentifier(const Node& node, std::string_view what);
  Located<std::string> ReadAxisName(const Node& node, std::string_view what);
  // Reads `null`, `axis` or `[axis, axis]`.
  AxisList ReadMeshAxisList(const Node& node);
  // Reads `embed`, `-2` or a list of these.
  std::optional<DimensionList> ReadDimensions(const Node::Entry& entry);
  // Reads an expression, or a number of at least 2^63, which is too large for expressions.
  std::variant<ExprPtr, uint64_t> ReadSeed(const Node::Entry& entry);
  std::optional<InitSpec> ReadInit(const Node& node);
  // Reads `file: path` or `file: {path: …, sha256: …}`. Returns nullopt if any of it is invalid.
  std::optional<FileSpec> ReadFileSpec(const Node::Entry& entry);
  // Reads `{source: base, tensor: …, index: […]}`, whose first key is `source`, or the value of
  // `rows_like` or `parts`. Returns null if any of it is invalid.
  std::shared_ptr<const FromSourceSpec> ReadFromSource(const Node& map, bool of_rows);
  std::shared_ptr<const PartsSpec> ReadParts(const Node& map);
  // Reads a scalar as JSON would. Text that begins with `=` is an expression, quoted or not. `==`
  // at the beginning means text that begins with one `=`.
  ConfigSpec ReadConfigValue(const Node& node);
  // Reads a view. The result is complete except for parts that were reported.
  ViewSpec ReadView(const Node& node);
  // Reads text with `{expressions}`. Does not check the text around them.
  PathSpec ReadPathSpec(const Node& node);
  // Reads a `key` that is a mapping. Returns nullopt if any of it is invalid.
  std::optional<KeySpec> ReadGivenKey(const Node& node);

  bool IsMap(const Node::Entry& entry, std::string_view hint);
  bool IsSequence(const Node::Entry& entry, std::string_view hint);
  bool IsText(const Node::Entry& entry);
  static Located<std::string> Text(const Node& node) { return {std::string(node.text), node.span}; }

  Diagnostics& diagnostics() { return diagnostics_; }
  Reported Error(const Node& node, std::string message, std::string hint = {});
  Reported ErrorAt(Span span, std::string message, std::string hint = {}) {
    return diagnostics_.Error(span, std::move(message), std::move(hint));
  }
  // Increases with every error, whether new or reported before.
  size_t Faults() const { return diagnostics_.errors() + known_faults_; }
  // Returns whether the map may have entries beyond the known ones.
  bool IsPart(const Node& map) const { return map.incomplete || is_part_; }
  // Counts an error that was reported before.
  void NoteFault() { ++known_faults_; }
  // Returns true if entries of the map were left out, so that counting them is meaningless.
  bool NoteGaps(const Node& map) {
    known_faults_ += map.incomplete;
    return map.incomplete;
  }
  // Reports a call that YAML split at its commas, and moves `*at` to its last piece.
  bool ReportCutCall(const std::vector<Node::Entry>& items, size_t* at);

 private:
  std::optional<InitSpec> ReadInitOf(const Node::Entry& only);
  ExprPtr ReadVariableText(const Node::Entry& entry);
  // Reports an error and returns null unless `{variable: …}` is valid for a `repeat` or a `for`.
  const Node::Entry* OnlyVariable(const Node::Entry& entry);
  std::optional<DimensionRef> ReadDimension(const Node::Entry& entry, const Node& node);
  std::optional<KeySpec> ReadJaxKey(const Node& node, const Node::Entry& entry);
  std::optional<KeySpec> ReadTorchKey(const Node& node, const Node::Entry& entry);
  void ReadJaxSteps(const Node& map, JaxKeySpec* key);
  void ReadStatics(const Node::Entry& entry, JaxKeySpec::Step* step);
  void ReadViewArgument(const Node::Entry& item, ViewSpec& view);
  // Reports `50,304` in braces, which YAML reads as the number 50 and a key 304 without a value.
  bool ReportCutNumber(const Node& before, const Node::Entry& entry);
  Reported ReportKind(const Node::Entry& entry, std::string_view wanted, std::string_view hint);
  // Returns whether the node has quotes; `!!str 5` is `quoted` but has none.
  static bool IsInQuotes(const Node& node) { return node.span.length == node.text.size() + 2; }

  Diagnostics& diagnostics_;
  const bool is_part_;
  size_t known_faults_ = 0;  // errors met again and not reported again
};

// These return whether YAML reads a plain scalar as something other than text.
bool IsBoolean(const Node& node);
bool IsNumber(const Node& node);

}  // namespace shardinit
