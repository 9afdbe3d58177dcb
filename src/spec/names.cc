#include "spec/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace shardinit {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWordCharacter(char c) { return IsLetter(c) || (c >= '0' && c <= '9') || c == '_'; }

// The place of the character at `offset` in a name.
Span PlaceIn(const Node& name, size_t offset, size_t length) {
  if (!name.verbatim) return name.span;
  Span span = name.span;
  span.column += offset + (name.quoted ? 1 : 0);
  span.length = length;
  return span;
}

// Reports the character of `name` at `offset`, which its rule excludes.
void ReportCharacter(const Node& name, size_t offset, std::string_view what,
                     std::string_view allowed, Diagnostics& diagnostics) {
  const Character c = CharacterAt(name.text, offset);
  const std::string_view found = name.text.substr(offset, c.size);
  const std::string subject = fmt::format("{} {}", what, Quote(name.text));
  const Span span = PlaceIn(name, offset, c.size);
  if (found == "/") {
    diagnostics.Error(span, fmt::format("{} has a slash", subject),
                      "separate the parts of a path by dots");
  } else if (found == "\n" || found == "\t" || IsUnsafe(c.code)) {
    diagnostics.Error(name.span, fmt::format("{} has a control character", subject),
                      std::string(allowed));
  } else {
    diagnostics.Error(span, fmt::format("{} has the character {}", subject, Quote(found)),
                      std::string(allowed));
  }
}

bool CheckLength(const Node& name, std::string_view what, size_t length, size_t longest,
                 Diagnostics& diagnostics) {
  if (length <= longest) return true;
  diagnostics.Error(name.span,
                    fmt::format("{} is {} bytes long, more than {}", what, length, longest));
  return false;
}

// One part of a path, which starts at `begin` of the name.
bool CheckPart(const Node& name, std::string_view part, size_t begin, Diagnostics& diagnostics) {
  for (size_t i = 0; i < part.size(); ++i) {
    if (IsWordCharacter(part[i]) || part[i] == '-') continue;
    ReportCharacter(name, begin + i, "name",
                    "names use letters, digits, `_` and `-`, with dots between parts", diagnostics);
    return false;
  }
  return CheckLength(name, "this part of a path", part.size(), kLongestPart, diagnostics);
}

}  // namespace

bool CheckIdentifier(const Node& name, std::string_view what, Diagnostics& diagnostics) {
  constexpr std::string_view kAllowed = "use letters, digits and `_`, not a digit first";
  if (name.text.empty()) {
    diagnostics.Error(name.span, fmt::format("{} has an empty name", what), std::string(kAllowed));
    return false;
  }
  for (size_t i = 0; i < name.text.size(); ++i) {
    const char c = name.text[i];
    if (i == 0 ? IsLetter(c) || c == '_' : IsWordCharacter(c)) continue;
    ReportCharacter(name, i, what, kAllowed, diagnostics);
    return false;
  }
  return CheckLength(name, what, name.text.size(), kLongestPart, diagnostics);
}

bool CheckPath(const Node& name, size_t prefix, Diagnostics& diagnostics) {
  const std::string_view text = name.text;
  if (text.empty()) {
    diagnostics.Error(name.span, "a name is empty");
    return false;
  }
  if (text == "." || text == "..") {
    diagnostics.Error(name.span, fmt::format("{} is not a name", Quote(text)),
                      "paths have no way to say this folder or the one above");
    return false;
  }
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    ReportCharacter(name, slash, "name", {}, diagnostics);
    return false;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    if (end == begin) {
      diagnostics.Error(PlaceIn(name, std::min(begin, text.size() - 1), 1),
                        fmt::format("name {} has an empty part", Quote(text)),
                        "single dots separate the parts of a path");
      return false;
    }
    if (!CheckPart(name, text.substr(begin, end - begin), begin, diagnostics)) return false;
    begin = end + 1;
  }
  return CheckLength(name, "this path", prefix + text.size(), kLongestPath, diagnostics);
}

bool CheckKey(const Node& key, Diagnostics& diagnostics) {
  if (key.text.empty()) {
    diagnostics.Error(key.span, "a key is empty");
    return false;
  }
  for (size_t i = 0; i < key.text.size();) {
    const Character c = CharacterAt(key.text, i);
    if (c.code == '\n' || c.code == '\t' || IsUnsafe(c.code)) {
      ReportCharacter(key, i, "key", {}, diagnostics);
      return false;
    }
    i += c.size;
  }
  return CheckLength(key, "this key", key.text.size(), kLongestPath, diagnostics);
}

bool CheckModelName(const Node& name, Diagnostics& diagnostics) {
  constexpr std::string_view kAllowed = "use letters, digits, `.`, `_` and `-`";
  const std::string_view text = name.text;
  if (text.empty()) {
    diagnostics.Error(name.span, "the model's name is empty");
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsWordCharacter(text[i]) || text[i] == '-' || text[i] == '.') continue;
    ReportCharacter(name, i, "the model's name", kAllowed, diagnostics);
    return false;
  }
  if (text[0] == '.' || text[0] == '-') {
    diagnostics.Error(PlaceIn(name, 0, 1),
                      fmt::format("the model's name {} starts with `{}`", Quote(text), text[0]),
                      "it names folders: start with a letter or a digit");
    return false;
  }
  return CheckLength(name, "the model's name", text.size(), kLongestPart, diagnostics);
}

}  // namespace shardinit
