// The kinds of values that a spec has, read from its tree. Each reports what it does not find,
// naming the key.
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

class SpecReader {
 public:
  // `is_part`: of a spec of which the rest is not there, so that nothing is missing in a mapping.
  SpecReader(bool is_part, Diagnostics& diagnostics)
      : diagnostics_(diagnostics), is_part_(is_part) {}

  // Null, absent or empty if it is wrong.
  ExprPtr ReadExpr(const Node::Entry& entry, std::string_view what = {});
  // A mapping of names to expressions; an entry of which not even the name is known is there,
  // without one.
  std::vector<Named<ExprPtr>> ReadExprs(const Node::Entry& entry, std::string_view what);
  // A list of them; `what` names one.
  std::vector<ExprPtr> ReadExprList(const Node::Entry& entry, std::string_view what);
  // `{variable: count}`, of `repeat` and `for`.
  std::optional<Named<ExprPtr>> ReadCount(const Node::Entry& entry);
  std::optional<Located<std::string>> ReadText(const Node::Entry& entry);
  std::optional<Located<std::string>> ReadWord(const Node::Entry& entry);
  std::optional<Located<std::string>> ReadChoice(const Node::Entry& entry,
                                                 std::span<const std::string_view> choices);
  std::optional<UnevenSpec> ReadUneven(const Node::Entry& entry);
  Located<std::string> ReadIdentifier(const Node& node, std::string_view what);
  Located<std::string> ReadAxisName(const Node& node, std::string_view what);
  // `null`, `axis` or `[axis, axis]`.
  AxisList ReadMeshAxisList(const Node& node);
  // `embed`, `-2` or a list of such.
  std::optional<DimensionList> ReadDimensions(const Node::Entry& entry);
  // An expression, or a number from 2^63 on, which expressions do not have.
  std::variant<ExprPtr, uint64_t> ReadSeed(const Node::Entry& entry);
  std::optional<InitSpec> ReadInit(const Node& node);
  // Of `file: path` or `file: {path: …, sha256: …}`; nothing if something in it is wrong.
  std::optional<FileSpec> ReadFileSpec(const Node::Entry& entry);
  // Scalars are what JSON would make of them; text that begins with `=` is an
  // expression, in quotes or not, and with `==` text that begins with one.
  ConfigSpec ReadConfigValue(const Node& node);
  // Complete but for what was reported.
  ViewSpec ReadView(const Node& node);
  // Text with `{expressions}`. What is left of the text is not checked.
  PathSpec ReadPathSpec(const Node& node);
  // A `key` that is a mapping; neither kind if something in it is wrong.
  void ReadGivenKey(const Node& node, TensorSpec& tensor);

  bool IsMap(const Node::Entry& entry, std::string_view hint);
  bool IsSequence(const Node::Entry& entry, std::string_view hint);
  bool IsText(const Node::Entry& entry);
  static Located<std::string> Text(const Node& node) { return {std::string(node.text), node.span}; }

  // Mistakes.

  Diagnostics& diagnostics() { return diagnostics_; }
  void Error(const Node& node, std::string message, std::string hint = {});
  void ErrorAt(Span span, std::string message, std::string hint = {}) {
    diagnostics_.Error(span, std::move(message), std::move(hint));
  }
  // Grows with every mistake, be it reported here or before.
  size_t Faults() const { return diagnostics_.all().size() + known_faults_; }
  // Whether entries that the map seems to lack may be there.
  bool IsPart(const Node& map) const { return map.incomplete || is_part_; }
  // True: entries of the map were left out, and so its number of them says nothing.
  bool NoteGaps(const Node& map) {
    known_faults_ += map.incomplete;
    return map.incomplete;
  }

 private:
  std::optional<DimensionRef> ReadDimension(const Node::Entry& entry, const Node& node);
  std::optional<JaxKeySpec> ReadJaxKey(const Node& node, const Node::Entry& entry);
  std::optional<TorchKeySpec> ReadTorchKey(const Node& node, const Node::Entry& entry);
  void ReadJaxSteps(const Node& map, JaxKeySpec* key);
  void ReadStatics(const Node::Entry& entry, JaxKeySpec::Step* step);
  void ReadViewArgument(const Node::Entry& item, ViewSpec& view);
  // In braces, `50,304` is the number 50 and a key 304 without a value.
  bool ReportCutNumber(const Node& before, const Node::Entry& entry);
  // Moves `*at` to the last piece of a call that a YAML comma has cut.
  bool ReportCutCall(const std::vector<Node::Entry>& items, size_t* at);
  void ReportKind(const Node::Entry& entry, std::string_view wanted, std::string_view hint);
  // `!!str 5` is quoted in effect, but has no quotes.
  static bool IsInQuotes(const Node& node) { return node.span.length == node.text.size() + 2; }

  Diagnostics& diagnostics_;
  const bool is_part_;
  size_t known_faults_ = 0;  // Met again, and not reported again.
};

// Plain scalars that YAML reads as something other than text.
bool IsBoolean(const Node& node);
bool IsNumber(const Node& node);

}  // namespace shardinit
