// Tells whether a message can be shown.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/text.h"

namespace shardinit {

// Returns whether the text is UTF-8 without characters that change how the text around them reads.
// A line that a message shows may have what looks like a space, as a comment in a spec may.
inline bool IsClean(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Character c = CharacterAt(text, i);
    if (!c.valid || IsUnsafe(c.code)) return false;
    i += static_cast<size_t>(c.size);
  }
  return true;
}

}  // namespace shardinit
