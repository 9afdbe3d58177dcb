// Handles UTF-8, terminal widths and hostile text: a user's text must never move the cursor,
// reverse a line or hide a character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardinit {

struct Character {
  char32_t code = 0;
  int size = 1;        // bytes
  bool valid = false;  // false: one byte that is not UTF-8
};

Character CharacterAt(std::string_view text, size_t offset);

// Returns the number of terminal columns: 0 for combining marks, 2 for East Asian wide characters.
int DisplayWidth(char32_t code);

// Returns whether the character is a control character, or a bidirectional or other invisible one
// that changes how the text around it reads. Tab and newline are safe.
bool IsUnsafe(char32_t code);

struct BadText {
  size_t offset = 0;
  std::string what;  // "control character U+001B", "invalid UTF-8 (byte 0xff)"
};

// Finds the first place where `text` is not clean UTF-8. CR is clean only before LF.
std::optional<BadText> FindBadText(std::string_view text);

// Escapes unsafe characters, newlines, tabs, invalid UTF-8 and lookalikes of spaces in names, such
// as `\x1b` and `\u202e`.
std::string Escape(std::string_view text);

// Puts text in backticks for messages, and shortens long text in the middle.
std::string Quote(std::string_view text);

// Returns whether a character is an ASCII letter or digit.
constexpr bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Returns a text with its ASCII letters in lower case.
std::string Lower(std::string_view text);

// Parses `80`, `80G`, `80GiB` (powers of 1024) or `80GB` (powers of 1000) as bytes.
std::optional<int64_t> SizeInBytes(std::string_view text);

// Parses `4k`, `4M`, `4G`, `4T` (powers of 1000), or `4ki` and so on (powers of 1024). Returns
// nothing for other text.
std::optional<int64_t> CountWithSuffix(std::string_view text);

}  // namespace shardinit
