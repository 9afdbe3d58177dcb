// Checks the messages that fuzz targets get about a spec.
#pragma once

#include <cstdlib>
#include <string>

#include "base/text.h"

namespace shardinit {

// Aborts unless the message is clean text. A quoted line of the spec, with carets below, may
// contain a character that looks like a space, since that may be the mistake.
inline void NeedCleanText(std::string message) {
  while (const auto bad = FindBadText(message)) {
    const size_t end = message.find('\n', bad->offset);
    if (!bad->what.ends_with("looks like a space, but is not one") || end == message.npos) abort();
    const std::string below = message.substr(end + 1, message.find('\n', end + 1) - end - 1);
    if (below.find('^') == below.npos || below.find_first_not_of(" \t^") != below.npos) abort();
    message.erase(bad->offset, static_cast<size_t>(CharacterAt(message, bad->offset).size));
  }
}

}  // namespace shardinit
