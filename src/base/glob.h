// Shell-like patterns over tensor paths, in linear time and without locale.
#pragma once

#include <string_view>

namespace shardinit {

// `*` matches any run of characters, dots too; `?` one character; `[a-z]` one
// of a set of bytes, `[!a-z]` one outside it. The whole path must match.
bool GlobMatches(std::string_view pattern, std::string_view text);

}  // namespace shardinit
