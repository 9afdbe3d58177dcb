#include "base/colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace shardinit {
namespace {

bool is_coloured[2] = {};  // by stream

// Returns the parameters of the code for a role. These are colours that every terminal has, and
// that its user has chosen to be readable.
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

size_t CodeSize(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace shardinit
