#include "base/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/text.h"

namespace shardinit {
namespace {

bool is_coloured[2] = {};  // by stream

// Returns the parameters of the escape code for a role. Every terminal has these colours, and its
// user has made them readable.
const char* CodeOf(Role role) {
  switch (role) {
    case Role::kError:
      return "1;31";
    case Role::kWarning:
      return "1;33";
    case Role::kNote:
      return "1;36";
    case Role::kHint:
      return "36";
    case Role::kStrong:
      return "1";
    case Role::kFaint:
      return "2";
    case Role::kGood:
      return "32";
    case Role::kBad:
      return "31";
    case Role::kChanged:
      return "33";
  }
  return "";
}

std::string_view Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

bool IsTerminal(Channel stream) {
  const std::string_view kind = Environment("TERM");
  return isatty(stream == Channel::kOutput ? STDOUT_FILENO : STDERR_FILENO) && !kind.empty() &&
         kind != "dumb";
}

void ChooseColours(ColourMode mode) {
  for (const Channel stream : {Channel::kOutput, Channel::kTalk}) {
    is_coloured[static_cast<size_t>(stream)] =
        mode == ColourMode::kAlways ||
        (mode == ColourMode::kAuto && IsTerminal(stream) && Environment("NO_COLOR").empty());
  }
}

void NeverColour(Channel stream) { is_coloured[static_cast<size_t>(stream)] = false; }

std::string Paint(Role role, std::string_view text, Channel stream) {
  if (text.empty() || !is_coloured[static_cast<size_t>(stream)]) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", CodeOf(role), text);
}

std::string WithoutColour(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t code = CodeSize(text);
    if (code == 0) plain += text[0];
    text.remove_prefix(std::max<size_t>(code, 1));
  }
  return plain;
}

std::string EscapePainted(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t code = CodeSize(text);
    out += text.substr(0, code);
    text.remove_prefix(code);
    size_t end = 0;
    while (end < text.size() && CodeSize(text.substr(end)) == 0) ++end;
    out += Escape(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::string MakeHarmless(std::string_view text) {
  constexpr std::string_view kClearLine = "\x1b[K";
  std::string out;
  out.reserve(text.size());
  // A line that overwrites itself begins with `\r`.
  for (size_t i = text.starts_with('\r') ? (out = "\r", 1) : 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    size_t size = 1;
    if (byte >= 0x20 && byte < 0x7f) {
      out += text[i++];
      continue;
    }
    const std::string_view rest = text.substr(i);
    if (byte == 0x1b) size = rest.starts_with(kClearLine) ? kClearLine.size() : CodeSize(rest);
    const Character c = CharacterAt(text, i);
    if (byte == 0x1b ? size > 0 : c.valid && !IsUnsafe(c.code)) {
      size = std::max<size_t>(size, static_cast<size_t>(c.size));
      out += rest.substr(0, size);
      i += size;
      continue;
    }
    if (!c.valid) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (c.code < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code));
    } else {
      const auto code = static_cast<uint32_t>(c.code) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
    }
    i += static_cast<size_t>(c.size);
  }
  return out;
}

size_t CodeSize(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace shardinit
