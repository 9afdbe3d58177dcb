#include "base/glob.h"

#include <algorithm>

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
  // On a mismatch only the last `*` can take one character more: the choices of earlier ones are
  // already as good as any other.
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

Globs::Globs(const std::vector<std::string>& patterns) {
  for (uint32_t i = 0; i < patterns.size(); ++i) {
    if (patterns[i].find_first_of("*?[") == std::string::npos) {
      names_[patterns[i]].push_back(i);
    } else {
      Add(patterns[i], i);
    }
  }
}

void Globs::Add(std::string_view pattern, uint32_t number) {
  size_t node = 0;
  for (size_t at = 0, next; at < pattern.size(); at = next) {
    next = at + 1;
    if (pattern[at] != '*') MatchesOne(pattern, at, '\0', &next);  // finds the element's end
    node = Child(node, pattern.substr(at, next - at));
  }
  nodes_[node].patterns.push_back(number);
}

size_t Globs::Child(size_t node, std::string_view element) {
  const size_t made = nodes_.size();
  size_t child = made;
  if (element == "*") {
    if (nodes_[node].is_star) return node;
    if (nodes_[node].star == 0) nodes_[node].star = made;
    child = nodes_[node].star;
  } else if (element.size() == 1 && element != "?") {
    child = nodes_[node].characters.try_emplace(element[0], made).first->second;
  } else {
    for (const auto& [set, behind] : nodes_[node].sets) {
      if (set == element) return behind;
    }
    nodes_[node].sets.emplace_back(element, made);
  }
  if (child == made) nodes_.emplace_back().is_star = element == "*";
  return child;
}

const std::vector<uint32_t>& Globs::Match(std::string_view text) {
  next_.clear();
  ++step_;
  Reach(0);
  size_t ignored;
  for (const char c : text) {
    std::swap(now_, next_);
    next_.clear();
    ++step_;
    for (const size_t index : now_) {
      const Node& node = nodes_[index];
      if (node.is_star) Reach(index);
      if (const auto child = node.characters.find(c); child != node.characters.end()) {
        Reach(child->second);
      }
      for (const auto& [set, child] : node.sets) {
        if (MatchesOne(set, 0, c, &ignored)) Reach(child);
      }
    }
    if (next_.empty()) break;
  }
  matches_.clear();
  if (const auto name = names_.find(std::string(text)); name != names_.end()) {
    matches_ = name->second;
  }
  for (const size_t node : next_) {
    matches_.insert(matches_.end(), nodes_[node].patterns.begin(), nodes_[node].patterns.end());
  }
  std::sort(matches_.begin(), matches_.end());
  return matches_;
}

// Adds a node, and the `*` behind it, which may also stand for nothing.
void Globs::Reach(size_t node) {
  if (nodes_[node].reached == step_) return;
  nodes_[node].reached = step_;
  next_.push_back(node);
  if (nodes_[node].star != 0) Reach(nodes_[node].star);
}

}  // namespace shardinit
