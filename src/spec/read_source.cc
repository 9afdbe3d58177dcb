// Reads initializers that take elements of a source, `{source: base, tensor: …, index: […]}` and
// `{rows_like: {source: base, std: …}}`, and initializers composed of parts.
#include <fmt/format.h>

#include <utility>

#include "base/suggest.h"
#include "base/text.h"
#include "spec/reader.h"

namespace shardinit {
namespace {

constexpr std::string_view kSourceForm =
    "write it as in `{source: base, tensor: model.w, index: [i0 % 4096, i1]}`";
constexpr std::string_view kRowsForm = "write it as in `{rows_like: {source: base, std: 3.2e-5}}`";
constexpr std::string_view kPartsForm =
    "write it as in `{parts: {axis: 0, of: [{source: base}, {rows_like: {source: base}}]}}`";

}  // namespace

std::shared_ptr<const FromSourceSpec> SpecReader::ReadFromSource(const Node& map, bool of_rows) {
  const size_t faults = Faults();
  const std::string_view what = of_rows ? "rows_like" : "source";
  const std::string form(of_rows ? kRowsForm : kSourceForm);
  if (!map.IsMap()) {
    return Error(map, fmt::format("`{}` takes a mapping, not {}", what, Describe(map)), form);
  }
  NoteGaps(map);
  FromSourceSpec from;
  const std::vector<std::string> keys =
      of_rows ? std::vector<std::string>{"source", "tensor", "rows", "std"}
              : std::vector<std::string>{"source", "tensor", "rows", "index"};
  for (size_t i = 0; i < map.entries.size(); ++i) {
    const Node::Entry& item = map.entries[i];
    if (ReportCutCall(map.entries, &i)) continue;
    const std::string_view key = item.key->text;
    if (key == "source") {
      from.source = ReadIdentifier(*item.value, "source");
    } else if (key == "tensor") {
      if (IsText(item)) from.tensor = ReadPathSpec(*item.value);
    } else if (key == "rows") {
      from.rows = ReadExpr(item);
    } else if (key == "std" && of_rows) {
      from.std = ReadExpr(item);
    } else if (key == "index" && !of_rows) {
      if (IsSequence(item, "list an expression for each dimension of the source's tensor")) {
        from.index = {ReadExprList(item, "an index"), item.value->span};
      }
    } else {
      Error(*item.key, fmt::format("`{}` has no key {}", what, Quote(key)), DidYouMean(key, keys));
    }
  }
  if (map.Find("source") == nullptr && Faults() == faults) {
    Error(map, fmt::format("`{}` names no source", what), form);
  }
  if (Faults() != faults) return nullptr;
  return std::make_shared<const FromSourceSpec>(std::move(from));
}

std::shared_ptr<const PartsSpec> SpecReader::ReadParts(const Node& map) {
  const size_t faults = Faults();
  if (!map.IsMap()) {
    return Error(map, fmt::format("`parts` takes a mapping, not {}", Describe(map)),
                 std::string(kPartsForm));
  }
  NoteGaps(map);
  PartsSpec parts;
  parts.span = map.span;
  for (const Node::Entry& item : map.entries) {
    if (item.key->text == "axis") {
      parts.axis = ReadDimensions(item);
      if (parts.axis && parts.axis->value.size() != 1) {
        Error(*item.value, "`axis` names one dimension", std::string(kPartsForm));
      }
    } else if (item.key->text == "of") {
      if (!IsSequence(item, kPartsForm)) continue;
      for (const Node::Entry& each : item.value->entries) {
        if (auto init = ReadInit(*each.value)) parts.of.push_back(*std::move(init));
      }
    } else {
      Error(*item.key, fmt::format("`parts` has no key {}", Quote(item.key->text)),
            DidYouMean(item.key->text, {"axis", "of"}));
    }
  }
  if (parts.of.empty() && Faults() == faults) {
    Error(map, "`parts` has no parts", std::string(kPartsForm));
  }
  if (Faults() != faults) return nullptr;
  return std::make_shared<const PartsSpec>(std::move(parts));
}

}  // namespace shardinit
