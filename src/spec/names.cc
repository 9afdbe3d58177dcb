#include "spec/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "expr/expr.h"

namespace shardinit {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWordCharacter(char c) { return IsAlphanumeric(c) || c == '_'; }

struct BadName {
  std::string message, hint;
  size_t offset = 0, length = 0;  // the invalid part of the text; length 0: all of it
};
using Judgement = std::optional<BadName>;  // nullopt: a valid name

bool Report(const Node& name, const Judgement& bad, Diagnostics& diagnostics) {
  if (!bad) return true;
  Span span = name.span;
  if (name.verbatim && bad->length > 0) {
    span.column += static_cast<uint32_t>(bad->offset + (name.quoted ? 1 : 0));
    span.length = static_cast<uint32_t>(bad->length);
  }
  return diagnostics.Error(span, bad->message, bad->hint);
}

// Describes the invalid character at `offset`.
BadName BadCharacter(std::string_view text, size_t offset, std::string_view what,
                     std::string_view allowed) {
  const Character c = CharacterAt(text, offset);
  const auto size = static_cast<size_t>(c.size);
  const std::string_view found = text.substr(offset, size);
  const std::string subject = fmt::format("{} {}", what, Quote(text));
  if (found == "/") {
    return {fmt::format("{} has a slash", subject), "separate the parts of a path by dots", offset,
            size};
  }
  if (found == "\n" || found == "\t" || IsUnsafe(c.code)) {
    return {fmt::format("{} has a control character", subject), std::string(allowed)};
  }
  return {fmt::format("{} has the character {}", subject, Quote(found)), std::string(allowed),
          offset, size};
}

Judgement JudgeLength(std::string_view what, size_t length, size_t longest) {
  if (length <= longest) return {};
  return BadName{fmt::format("{} is {} bytes long, more than {}", what, length, longest), {}};
}

Judgement JudgeIdentifier(std::string_view text, std::string_view what) {
  constexpr std::string_view kAllowed = "use letters, digits and `_`, not a digit first";
  if (text.empty()) {
    return BadName{fmt::format("{} has an empty name", what), std::string(kAllowed)};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == 0 ? IsLetter(c) || c == '_' : IsWordCharacter(c)) continue;
    return BadCharacter(text, i, what, kAllowed);
  }
  return JudgeLength(what, text.size(), kLongestPart);
}

Judgement JudgePart(std::string_view path, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    if (IsWordCharacter(path[i]) || path[i] == '-') continue;
    return BadCharacter(path, i, "name",
                        "names use letters, digits, `_` and `-`, with dots between parts");
  }
  return JudgeLength("this part of a path", end - begin, kLongestPart);
}

Judgement JudgePath(std::string_view text, size_t prefix) {
  if (text.empty()) return BadName{"a name is empty", {}};
  if (text == "." || text == "..") {
    return BadName{fmt::format("{} is not a name", Quote(text)),
                   "paths cannot name this folder or the one above"};
  }
  if (const size_t slash = text.find('/'); slash != text.npos) {
    return BadCharacter(text, slash, "name", {});
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    if (end == begin) {
      return BadName{fmt::format("name {} has an empty part", Quote(text)),
                     "single dots separate the parts of a path", std::min(begin, text.size() - 1),
                     1};
    }
    if (auto bad = JudgePart(text, begin, end)) return bad;
    begin = end + 1;
  }
  return JudgeLength("this path", prefix + text.size(), kLongestPath);
}

Judgement JudgeKey(std::string_view text) {
  if (text.empty()) return BadName{"a key is empty", {}};
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    if (c.code == '\n' || c.code == '\t' || IsUnsafe(c.code))
      return BadCharacter(text, i, "key", {});
    i += static_cast<size_t>(c.size);
  }
  return JudgeLength("this key", text.size(), kLongestPath);
}

Judgement JudgeModelName(std::string_view text) {
  if (text.empty()) return BadName{"the model's name is empty", {}};
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsWordCharacter(text[i]) || text[i] == '-' || text[i] == '.') continue;
    return BadCharacter(text, i, "the model's name", "use letters, digits, `.`, `_` and `-`");
  }
  if (text[0] == '.' || text[0] == '-') {
    return BadName{fmt::format("the model's name {} starts with `{}`", Quote(text), text[0]),
                   "it is part of folder names: start with a letter or a digit", 0, 1};
  }
  return JudgeLength("the model's name", text.size(), kLongestPart);
}

}  // namespace

bool IsIdentifier(std::string_view text) { return !JudgeIdentifier(text, {}); }
bool IsPath(std::string_view text) { return !JudgePath(text, 0); }
bool IsModelName(std::string_view text) { return !JudgeModelName(text); }

bool CheckIdentifier(const Node& name, std::string_view what, Diagnostics& diagnostics) {
  return Report(name, JudgeIdentifier(name.text, what), diagnostics);
}

bool CheckVariable(const Node& name, Diagnostics& diagnostics) {
  if (!IsReservedName(name.text)) return true;
  return diagnostics.Error(name.span, fmt::format("{} is a word of expressions", Quote(name.text)),
                           "choose another name for this variable");
}

bool CheckPath(const Node& name, size_t prefix, Diagnostics& diagnostics) {
  return Report(name, JudgePath(name.text, prefix), diagnostics);
}

bool CheckKey(const Node& key, Diagnostics& diagnostics) {
  return Report(key, JudgeKey(key.text), diagnostics);
}

bool CheckModelName(const Node& name, Diagnostics& diagnostics) {
  return Report(name, JudgeModelName(name.text), diagnostics);
}

}  // namespace shardinit
