#include "commands/job_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace shardinit {
namespace {

void RequireUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    if (!character.valid) {
      throw Usage(
          fmt::format("{} is not UTF-8, so neither YAML nor JSON can contain it", Quote(text)),
          "give the file or folder another name");
    }
    at += static_cast<size_t>(character.size);
  }
}

// Returns whether YAML keeps the character as it is: it neither ends a line nor is forbidden in
// YAML text.
bool IsPlainInYaml(char32_t code) {
  return code >= ' ' && code != 0xfffe && code != 0xffff && code != 0x2028 && code != 0x2029 &&
         !IsUnsafe(code);
}

bool IsPlainInShell(char c) {
  return IsAlphanumeric(c) || std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

}  // namespace

std::string InShell(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsPlainInShell)) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string InShell(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + InShell(word);
  return line;
}

std::string InYamlScalar(std::string_view text) {
  RequireUtf8(text);
  std::string quoted = "\"";
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    const auto code = static_cast<uint32_t>(character.code);
    const std::string_view as_is = text.substr(at, static_cast<size_t>(character.size));
    at += as_is.size();
    if (code == '"' || code == '\\') {
      quoted += '\\';
      quoted += as_is;
    } else if (code == '\n') {
      quoted += "\\n";
    } else if (IsPlainInYaml(character.code)) {
      quoted += as_is;
    } else {
      quoted += code < 0x100     ? fmt::format("\\x{:02x}", code)
                : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                 : fmt::format("\\U{:08x}", code);
    }
  }
  return quoted + "\"";
}

std::string InYamlBlock(const std::string& lines) {
  RequireUtf8(lines);
  // A block ends with one newline, and the spaces before its first line set its indentation.
  bool is_plain = lines.ends_with('\n') && !lines.ends_with("\n\n") && lines[0] > ' ';
  for (size_t at = 0; at < lines.size();) {
    const Character character = CharacterAt(lines, at);
    is_plain &= character.code == '\n' || IsPlainInYaml(character.code);
    at += static_cast<size_t>(character.size);
  }
  if (!is_plain) return InYamlScalar(lines);
  std::string block = "|\n  ";
  for (const char c : lines.substr(0, lines.size() - 1)) {
    block += c;
    if (c == '\n') block += "  ";
  }
  return block;
}

std::string InJsonText(std::string_view text) {
  RequireUtf8(text);
  return JsonWriter().Value(text).Take();
}

std::string InJsonText(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) RequireUtf8(text);
  return JsonWriter().Value(texts).Take();
}

}  // namespace shardinit
