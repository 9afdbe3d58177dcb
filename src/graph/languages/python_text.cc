#include "graph/languages/python_text.h"

#include <fmt/format.h>

#include "base/text.h"

namespace shardinit {
namespace {

constexpr int kDeepestPython = 16;

bool IsNameCharacter(char c) { return IsAlphanumeric(c) || c == '_' || c == '.'; }

class PythonParser {
 public:
  explicit PythonParser(const Node& node) : node_(node) {}

  std::optional<PythonValue> Parse(std::string_view text, int depth) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    PythonValue value = {PythonValue::kName, std::string(text), {}, {}, PlaceOfText(text), {}};
    if (depth > kDeepestPython) return {};
    const size_t name = Name(text);
    if (name > 0 && name < text.size() && text[name] == '=' && text.substr(name, 2) != "==") {
      auto of = Parse(text.substr(name + 1), depth);
      if (of) of->keyword = text.substr(0, name);
      return of;
    }
    if (text == "None") {
      value.kind = PythonValue::kNone;
    } else if (text.size() >= 2 && (text[0] == '\'' || text[0] == '"') &&
               text.find(text[0], 1) == text.size() - 1) {
      value.text = text.substr(1, text.size() - 2);
    } else if (!text.empty() && (text[0] == '(' || text[0] == '[') &&
               Close(text, 0) == text.size() - 1) {
      value.kind = PythonValue::kSequence;
      const auto items = Items(text.substr(1, text.size() - 2), depth);
      if (!items) return {};
      value.items = *items;
      // In Python, a value in parentheses is the value itself.
      const bool is_tuple = text[0] == '[' || value.items.size() != 1 || ends_with_comma_;
      if (!is_tuple) value = value.items[0];
    } else if (name > 0 && name < text.size() && text[name] == '(' &&
               Close(text, name) == text.size() - 1) {
      value.kind = PythonValue::kCall;
      value.name = text.substr(0, name);
      const auto items = Items(text.substr(name + 1, text.size() - name - 2), depth);
      if (!items) return {};
      value.items = *items;
    } else if (!IsBalanced(text)) {
      return {};
    }
    return value;
  }

 private:
  static size_t Name(std::string_view text) {
    size_t end = 0;
    while (end < text.size() && IsNameCharacter(text[end])) ++end;
    return end;
  }

  // Returns where the parenthesis at `open` closes; npos if it is never closed.
  static size_t Close(std::string_view text, size_t open) {
    int depth = 0;
    char quote = 0;
    for (size_t i = open; i < text.size(); ++i) {
      const char c = text[i];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (c == '(' || c == '[') {
        ++depth;
      } else if ((c == ')' || c == ']') && --depth == 0) {
        return i;
      }
    }
    return text.npos;
  }
  static bool IsBalanced(std::string_view text) {
    const std::string in = fmt::format("({})", text);
    return Close(in, 0) == in.size() - 1 && text.find_first_of("'\"") == text.npos;
  }

  std::optional<std::vector<PythonValue>> Items(std::string_view text, int depth) {
    std::vector<PythonValue> items;
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = begin;
      while (end < text.size() && text[end] != ',') {
        if (text[end] == '(' || text[end] == '[') end = Close(text, end);
        if (end == text.npos) return {};
        ++end;
      }
      const std::string_view item = text.substr(begin, end - begin);
      if (item.find_first_not_of(' ') == item.npos) {
        if (end < text.size()) return {};
        break;
      }
      auto value = Parse(item, depth + 1);
      if (!value) return {};
      items.push_back(std::move(*value));
      begin = end + 1;
    }
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    ends_with_comma_ = !text.empty() && text.back() == ',';
    return items;
  }

  Span PlaceOfText(std::string_view text) const {
    Span span = node_.span;
    if (!node_.verbatim || text.empty()) return span;
    const bool in_quotes = span.length == node_.text.size() + 2;
    span.column += static_cast<uint32_t>(text.data() - node_.text.data()) + in_quotes;
    span.length = static_cast<uint32_t>(text.size());
    return span;
  }

  const Node& node_;
  bool ends_with_comma_ = false;  // whether the last items that were read end with a comma
};

}  // namespace

std::optional<PythonValue> ParsePython(const Node& text, Diagnostics& diagnostics) {
  auto value = PythonParser(text).Parse(text.text, 0);
  if (!value) {
    diagnostics.Error(text.span, fmt::format("{} is not well formed", Quote(text.text)),
                      "write it as in `P('fsdp', None)` or `Shard(0)`");
  }
  return value;
}

}  // namespace shardinit
