#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace shardinit {
namespace {

struct Range {
  char32_t first, last;
};

template <size_t N>
bool Contains(const Range (&ranges)[N], char32_t code) {
  const Range* range = std::lower_bound(std::begin(ranges), std::end(ranges), code,
                                        [](const Range& r, char32_t c) { return r.last < c; });
  return range != std::end(ranges) && range->first <= code;
}

// General categories Mn and Cf of Unicode 15, coarsened to blocks.
constexpr Range kZeroWidth[] = {
    {0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd},  {0x064b, 0x065f}, {0x1ab0, 0x1aff},
    {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x2060, 0x2064},  {0x20d0, 0x20ff}, {0xfe00, 0xfe0f},
    {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}, {0xe0100, 0xe01ef}};

// East Asian Width W or F of Unicode 15, coarsened to blocks.
constexpr Range kWide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0x33ff},
                           {0x3400, 0x4dbf},   {0x4e00, 0xa4cf},   {0xa960, 0xa97f},
                           {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                           {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                           {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

// C0, DEL and C1; soft hyphen; zero-width and directional marks; line and paragraph separators;
// directional embeddings, overrides and isolates; interlinear annotation; tags.
constexpr Range kUnsafe[] = {
    {0x0000, 0x001f}, {0x007f, 0x009f}, {0x00ad, 0x00ad}, {0x061c, 0x061c}, {0x200b, 0x200f},
    {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};

}  // namespace

Character CharacterAt(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) -> unsigned {
    return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {.code = lead, .size = 1, .valid = true};
  const int size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  const Character bad = {.code = lead, .size = 1, .valid = false};
  if (lead < 0xc2 || lead > 0xf4) return bad;
  char32_t code = lead & (0x7fu >> size);
  for (int i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return bad;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr char32_t kSmallest[] = {0x80, 0x800, 0x10000};
  if (code < kSmallest[size - 2] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
    return bad;
  }
  return {.code = code, .size = size, .valid = true};
}

int DisplayWidth(char32_t code) {
  if (code < 0x300) return 1;
  return Contains(kZeroWidth, code) ? 0 : Contains(kWide, code) ? 2 : 1;
}

bool IsUnsafe(char32_t code) { return code != '\t' && code != '\n' && Contains(kUnsafe, code); }

namespace {

// Returns whether a character looks like a space but is not one in YAML. Text that is copied from
// web pages contains such characters.
bool IsForeignSpace(char32_t code) {
  return code == 0xa0 || (code >= 0x2000 && code <= 0x200a) || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

// Returns whether a line may contain a comment or quoted text up to this character; `before` is the
// result for the previous character.
bool MayBeProse(bool before, char32_t code) {
  return code != '\n' && (before || code == '#' || code == '"' || code == '\'');
}

}  // namespace

std::optional<BadText> FindBadText(std::string_view text) {
  bool prose = false;
  for (size_t i = 0; i < text.size();) {
    const unsigned char byte = text[i];
    prose = MayBeProse(prose, byte);
    if (byte >= 0x20 && byte < 0x7f) {
      ++i;
      continue;
    }
    const Character c = CharacterAt(text, i);
    if (!c.valid) return BadText{i, fmt::format("invalid UTF-8 (byte {:#04x})", byte)};
    if (c.code == '\r') {
      if (i + 1 >= text.size() || text[i + 1] != '\n') {
        return BadText{i, "carriage return without a newline"};
      }
    } else if (IsUnsafe(c.code)) {
      const bool control = c.code < 0xa0;
      return BadText{i, fmt::format("{} character U+{:04X}", control ? "control" : "invisible",
                                    static_cast<uint32_t>(c.code))};
    } else if (IsForeignSpace(c.code) && !prose) {
      return BadText{i, fmt::format("U+{:04X} looks like a space, but is not one",
                                    static_cast<uint32_t>(c.code))};
    }
    i += c.size;
  }
  return std::nullopt;
}

std::string Escape(std::string_view text) {
  std::string out;
  bool prose = false;
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    const uint32_t code = c.code;
    prose = MayBeProse(prose, code);
    if (code == '\n') {
      out += "\\n";
    } else if (code == '\t') {
      out += "\\t";
    } else if (!c.valid || (IsUnsafe(code) && code < 0x100)) {
      out += fmt::format("\\x{:02x}", code);
    } else if (IsUnsafe(code) || (IsForeignSpace(code) && !prose)) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += text.substr(i, c.size);
    }
    i += c.size;
  }
  return out;
}

std::string Quote(std::string_view text) {
  constexpr size_t kLongest = 80, kHead = 50, kTail = 20;
  if (text.size() <= kLongest) return fmt::format("`{}`", Escape(text));
  const auto starts_character = [&](size_t i) { return (text[i] & 0xc0) != 0x80; };
  size_t head = kHead, tail = text.size() - kTail;
  while (head > 0 && !starts_character(head)) --head;
  while (tail < text.size() && !starts_character(tail)) ++tail;
  return fmt::format("`{}…{}`", Escape(text.substr(0, head)), Escape(text.substr(tail)));
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::optional<int64_t> SizeInBytes(std::string_view text) {
  int64_t bytes = 0;
  const char* last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, bytes);
  if (error != std::errc() || bytes < 0) return {};
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  if (text.empty()) return bytes;
  constexpr std::string_view kLetters = "KMGT";
  const size_t power = kLetters.find(text[0]);
  const std::string_view suffix = text.substr(1);
  if (power == kLetters.npos || !(suffix.empty() || suffix == "B" || suffix == "iB")) return {};
  for (size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(bytes, suffix == "B" ? 1000 : 1024, &bytes)) return {};
  }
  return bytes;
}

std::optional<int64_t> CountWithSuffix(std::string_view text) {
  int64_t count = 0;
  const char* last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, count);
  if (error != std::errc() || count < 0 || stop == last) return {};
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  constexpr std::string_view kLetters = "kMGT";
  const size_t power = kLetters.find(text[0] == 'K' ? 'k' : text[0]);
  const std::string_view suffix = text.substr(1);
  if (power == kLetters.npos || !(suffix.empty() || suffix == "i")) return {};
  for (size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(count, suffix == "i" ? 1024 : 1000, &count)) return {};
  }
  return count;
}

}  // namespace shardinit
