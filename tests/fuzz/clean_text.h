// What fuzz targets ask of messages about a spec.
#pragma once

#include <cstdlib>
#include <string>

#include "base/text.h"

namespace shardinit {

// Messages are clean text. A line of the spec that one shows, with carets below, may have what
// looks like a space, which may be what is wrong with it.
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
