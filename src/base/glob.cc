#include "base/glob.h"

namespace shardinit {
namespace {

// Matches one pattern element at `p` against `c`; `*next` is behind the element.
bool MatchesOne(std::string_view pattern, size_t p, char c, size_t* next) {
  if (pattern[p] == '?') {
    *next = p + 1;
    return true;
  }
  // A `]` that comes first is a member of the set, not its end.
  const bool negated = pattern.substr(p, 2) == "[!";
  const size_t end = pattern[p] == '[' ? pattern.find(']', p + 2 + negated) : pattern.npos;
  if (end == pattern.npos) {
    *next = p + 1;
    return pattern[p] == c;
  }
  bool found = false;
  for (size_t i = p + 1 + negated; i < end; ++i) {
    if (i + 2 < end && pattern[i + 1] == '-') {
      found |= pattern[i] <= c && c <= pattern[i + 2];
      i += 2;
    } else {
      found |= pattern[i] == c;
    }
  }
  *next = end + 1;
  return found != negated;
}

}  // namespace

bool GlobMatches(std::string_view pattern, std::string_view text) {
  // On a mismatch only the last `*` can take one character more: what earlier
  // ones took is already as good as any other choice.
  size_t p = 0, t = 0, star = pattern.npos, star_text = 0, next;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && MatchesOne(pattern, p, text[t], &next)) {
      p = next;
      ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace shardinit
