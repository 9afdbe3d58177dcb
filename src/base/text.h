// Handles UTF-8, terminals and hostile text: a user's text must never be able to move the cursor,
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

// Returns terminal columns: 0 for combining marks, 2 for East Asian wide characters.
int DisplayWidth(char32_t code);

// Tells whether the character is a control character, a bidirectional control or another invisible
// character that changes how the text around it reads. Tab and newline are safe.
bool IsUnsafe(char32_t code);

struct BadText {
  size_t offset = 0;
  std::string what;  // "control character U+001B", "invalid UTF-8 (byte 0xff)"
};

// Finds the first place where `text` is not clean UTF-8; CR is clean only before LF.
std::optional<BadText> FindBadText(std::string_view text);

// Replaces unsafe characters, newlines, and what looks like a space in a name, by `\x1b` and
// `\u202e`; all else is unchanged.
std::string Escape(std::string_view text);

// Puts text in backticks for messages, shortened in the middle when it is long.
std::string Quote(std::string_view text);

// Reads `80`, `80G`, `80GiB` (of 1024) or `80GB` (of 1000) as bytes.
std::optional<int64_t> SizeInBytes(std::string_view text);

// Reads `4k`, `4M`, `4G`, `4T` (of 1000), or the same with `i` (of 1024), as a number; nothing for
// other text.
std::optional<int64_t> CountWithSuffix(std::string_view text);

}  // namespace shardinit
