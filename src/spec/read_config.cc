#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/parse_number.h"
#include "base/table.h"
#include "base/text.h"
#include "expr/expr.h"
#include "spec/reader.h"

namespace shardinit {
namespace {

// Returns whether YAML reads the text as a number that is not finite.
bool IsNotFinite(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return Contains(kNotFinite, text);
}

}  // namespace

ConfigSpec SpecReader::ReadConfigValue(const Node& node) {
  if (node.IsNull()) return {nullptr};
  if (node.IsMap()) {
    ConfigSpec::Map map;
    for (const Node::Entry& entry : node.entries) {
      map.push_back({Text(*entry.key), ReadConfigValue(*entry.value)});
    }
    return {std::move(map)};
  }
  if (node.IsSequence()) {
    ConfigSpec::List list;
    for (const Node::Entry& entry : node.entries) list.push_back(ReadConfigValue(*entry.value));
    return {std::move(list)};
  }
  if (node.text.starts_with("==")) return {std::string(node.text.substr(1))};
  if (node.text.starts_with('=')) {
    if (!node.verbatim) {
      Error(node, "an expression must be in one line, without escapes");
      return {nullptr};
    }
    Span span = node.span;
    span.column += IsInQuotes(node) ? 2 : 1;
    return {ParseExpr(node.text.substr(1), span, diagnostics_)};
  }
  if (IsBoolean(node)) return {node.text == "true"};
  std::string_view digits = node.text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (!IsNumber(node) && (node.quoted || !IsNotFinite(digits))) return {std::string(node.text)};
  if (const auto integer = ParseNumber<int64_t>(digits)) return {*integer};
  if (const auto natural = ParseNumber<uint64_t>(digits)) return {*natural};
  if (digits.find_first_not_of("0123456789", digits.starts_with('-') ? 1 : 0) == digits.npos) {
    Error(node, fmt::format("{} does not fit in 64 bits", Quote(node.text)),
          "put it in quotes to keep its digits as text, or write it as a float, such as `1e20`");
    return {nullptr};
  }
  if (const auto number = ParseNumber<double>(digits)) return {*number};
  Error(node, fmt::format("JSON has no number {}", Quote(node.text)),
        IsNotFinite(digits) ? "Transformers writes `{__float__: Infinity}`, or -Infinity, or NaN"
                            : "put it in quotes if it is text");
  return {nullptr};
}

}  // namespace shardinit
