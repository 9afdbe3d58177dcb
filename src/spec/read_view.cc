// Reads views of layouts: the paths and operations that assemble a stored tensor.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/table.h"
#include "base/text.h"
#include "spec/keys.h"
#include "spec/names.h"
#include "spec/reader.h"

namespace shardinit {
namespace {

struct OperationKey : SpecKey {
  void (*read)(SpecReader& reader, const Node::Entry& item, ViewSpec& view);
};

void ReadOf(SpecReader& reader, const Node::Entry& item, ViewSpec& view) {
  view.is_list = item.value->IsSequence();
  if (!view.is_list) {
    view.of.push_back(reader.ReadView(*item.value));
    return;
  }
  for (const Node::Entry& of : item.value->entries) view.of.push_back(reader.ReadView(*of.value));
  if (view.of.empty()) reader.Error(*item.value, "`of` is empty");
}

constexpr OperationKey kOperationKeys[] = {
    {{.name = "of",
      .description = "the input: a path or operation, or a list",
      .kind = SpecKind::kViews,
      .required = true},
     ReadOf},
    {{.name = "for",
      .description = "a variable and a count: repeats the input",
      .kind = SpecKind::kRepeat},
     [](SpecReader& reader, const Node::Entry& item, ViewSpec& view) {
       view.loop = reader.ReadCount(item);
     }},
};

}  // namespace

std::vector<SpecKey> OperationKeys() {
  return {std::begin(kOperationKeys), std::end(kOperationKeys)};
}

ViewSpec SpecReader::ReadView(const Node& node) {
  constexpr std::string_view kForm =
      "name a tensor of `modules`, or write an operation such as `{concat: {axis: 0, of: [a, b]}}`";
  ViewSpec view;
  view.span = node.span;
  if (node.IsScalar() && !IsNumber(node) && !IsBoolean(node)) {
    view.path = ReadPathSpec(node);
    return view;
  }
  if (NoteGaps(node)) return view;
  if (!node.IsMap() || node.entries.size() != 1) {
    Error(node,
          node.IsMap() ? fmt::format("a view has one operation, not {}", node.entries.size())
                       : fmt::format("a view is a path or a mapping, not {}", Describe(node)),
          std::string(kForm));
    return view;
  }
  const Node::Entry& only = node.entries[0];
  view.span = only.key->span;
  view.operation = Text(*only.key);
  if (!CheckIdentifier(*only.key, "operation", diagnostics_) ||
      !IsMap(only, fmt::format("write it as in `{{{}: {{of: …}}}}`", only.key->text)))
    return view;
  for (const Node::Entry& item : only.value->entries) ReadViewArgument(item, view);
  if (view.of.empty() && !IsPart(*only.value) && only.value->Find("of") == nullptr) {
    Error(*only.key, fmt::format("{} has no `of`", Quote(only.key->text)),
          "give its input in `of`: a path or another operation, or a list of them");
  }
  return view;
}

void SpecReader::ReadViewArgument(const Node::Entry& item, ViewSpec& view) {
  const OperationKey* const key = FindNamed(kOperationKeys, item.key->text);
  if (key != nullptr) return key->read(*this, item, view);
  if (!CheckIdentifier(*item.key, "argument", diagnostics_)) return;
  ViewSpec::Argument argument = {Text(*item.key), item.value->IsSequence(), {}};
  if (argument.is_list) {
    argument.values = ReadExprList(item, {});
  } else {
    argument.values.push_back(ReadExpr(item));
  }
  view.arguments.push_back(std::move(argument));
}

PathSpec SpecReader::ReadPathSpec(const Node& node) {
  PathSpec path = {Text(node), {}};
  const std::string_view text = node.text;
  if (text.empty()) Error(node, "a path is empty");
  for (size_t at = 0; at < text.size();) {
    const size_t open = std::min(text.find('{', at), text.size());
    PathSpec::Part part = {std::string(text.substr(at, open - at)), nullptr};
    at = open;
    if (open < text.size()) {
      const size_t close = text.find('}', open);
      if (close == text.npos || !node.verbatim) {
        Error(node, node.verbatim ? fmt::format("{} has a `{{` without its `}}`", Quote(text))
                                  : "a path with expressions must be in one line, without escapes");
        return path;
      }
      Span span = node.span;
      span.column += static_cast<uint32_t>(open + 1 + (IsInQuotes(node) ? 1 : 0));
      span.length = static_cast<uint32_t>(close - open - 1);
      part.number = ParseExpr(text.substr(open + 1, close - open - 1), span, diagnostics_);
      if (part.number == nullptr) return path;
      at = close + 1;
    }
    path.parts.push_back(std::move(part));
  }
  return path;
}

}  // namespace shardinit
