// UTF-8, terminals and hostile text: what a user wrote must never be able to
// move the cursor, reverse a line or hide a character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardinit {

struct Character {
  char32_t code = 0;
  int size = 1;        // Bytes.
  bool valid = false;  // False: one byte that is not UTF-8.
};

Character CharacterAt(std::string_view text, size_t offset);

// Terminal columns: 0 for combining marks, 2 for East Asian wide characters.
int DisplayWidth(char32_t code);

// Control characters, bidirectional controls and other invisible characters
// that change how the text around them reads. Not tab and newline.
bool IsUnsafe(char32_t code);

struct BadText {
  size_t offset = 0;
  std::string what;  // "control character U+001B", "invalid UTF-8 (byte 0xff)"
};

// The first place where `text` is not clean UTF-8; CR only before LF.
std::optional<BadText> FindBadText(std::string_view text);

// Unsafe characters and newlines as `\x1b` and `\u202e`; all else unchanged.
std::string Escape(std::string_view text);

// In backticks, shortened in the middle when it is long: for messages.
std::string Quote(std::string_view text);

// Of `80`, `80G`, `80GiB` (of 1024) or `80GB` (of 1000).
std::optional<int64_t> SizeInBytes(std::string_view text);

}  // namespace shardinit
