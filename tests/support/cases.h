// Tells how many cases a test draws where nothing else would change.
#pragma once

#include <cstdint>

namespace shardinit {

// Returns a tenth with sanitizers, which take up to 60 times as long for the same code; else all.
constexpr int64_t Cases(int64_t all) {
#ifdef SHARDINIT_SANITIZED
  return all / 10;
#else
  return all;
#endif
}

}  // namespace shardinit
