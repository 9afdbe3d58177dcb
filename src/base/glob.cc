#include "base/glob.h"

#include <algorithm>

namespace shardinit {
namespace {

// Returns the first part of a path pattern, or all of any other pattern.
std::string_view PartOf(std::string_view pattern, Stars stars) {
  return stars == Stars::kRuns ? pattern : pattern.substr(0, pattern.find('.'));
}

// Returns the length of the first element of `part`: a set or one character. At the end of a part,
// that is the dot.
size_t ElementLength(std::string_view part) {
  // A `]` that comes first is a member of the set, not its end.
  const size_t first = part.starts_with("[!") ? 3 : 2;
  const size_t end = part.starts_with('[') ? part.find(']', first) : part.npos;
  return end == part.npos ? 1 : end + 1;
}

// Returns whether the first element of `part` matches `c`.
bool ElementMatches(std::string_view part, char c, Stars stars) {
  if (stars == Stars::kParts && (c == '.' || part.empty())) return c == '.' && part.empty();
  const std::string_view element = part.substr(0, ElementLength(part));
  if (element.size() == 1) return element[0] == '?' || element[0] == c;
  const bool negated = element[1] == '!';
  bool found = false;
  const size_t end = element.size() - 1;
  for (size_t i = 1 + negated; i < end; ++i) {
    if (i + 2 < end && element[i + 1] == '-') {
      found |= element[i] <= c && c <= element[i + 2];
      i += 2;
    } else {
      found |= element[i] == c;
    }
  }
  return found != negated;
}

}  // namespace

bool Matches(std::string_view pattern, std::string_view text, Stars stars) {
  constexpr size_t kNone = std::string_view::npos;
  const bool in_parts = stars == Stars::kParts;
  // After a mismatch, only the last `*` can take one more character, and then only the last `**`
  // one more part. The choices of earlier stars are already as good as any other.
  struct Choice {
    size_t pattern = kNone, text = 0;  // the positions after the star
  };
  Choice run, parts;
  size_t p = 0, t = 0;
  while (true) {
    const std::string_view part = PartOf(pattern.substr(p), stars);
    if (in_parts && part == "**" && (p == 0 || pattern[p - 1] == '.')) {
      if (p + part.size() == pattern.size()) return true;
      p += part.size() + 1;
      parts = {p, t};
      run = {};
    } else if (part.starts_with('*')) {
      run = {++p, t};
    } else if (t == text.size() && p == pattern.size()) {
      return true;
    } else if (t < text.size() && p < pattern.size() && ElementMatches(part, text[t], stars)) {
      p += ElementLength(part);
      ++t;
    } else if (run.text < text.size() && run.pattern != kNone &&
               !(in_parts && text[run.text] == '.')) {
      p = run.pattern;
      t = ++run.text;
    } else {
      const size_t dot = parts.pattern == kNone ? kNone : text.find('.', parts.text);
      if (dot == kNone) return false;
      p = parts.pattern;
      t = parts.text = dot + 1;
      run = {};
    }
  }
}

Globs::Globs(const std::vector<std::string>& patterns, Stars stars) : stars_(stars) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (patterns[i].find_first_of("*?[") == std::string::npos) {
      names_[patterns[i]].push_back(i);
    } else {
      Add(patterns[i], i);
    }
  }
}

void Globs::Add(std::string_view pattern, size_t number) {
  size_t node = 0;
  while (true) {
    const std::string_view part = PartOf(pattern, stars_);
    if (stars_ == Stars::kParts && part == "**") {
      node = Child(node, part);
    } else {
      for (std::string_view rest = part; !rest.empty(); rest.remove_prefix(ElementLength(rest))) {
        node = Child(node, rest.substr(0, ElementLength(rest)));
      }
    }
    if (part.size() == pattern.size()) break;
    node = Child(node, ".");
    pattern.remove_prefix(part.size() + 1);
  }
  nodes_[node].patterns.push_back(number);
}

size_t Globs::Child(size_t node, std::string_view element) {
  const size_t made = nodes_.size();
  size_t child = made;
  if (element == "*" || element == "**") {
    size_t& star = element == "*" ? nodes_[node].run : nodes_[node].parts;
    if (element == "*" && nodes_[node].is_run) return node;
    if (star == 0) star = made;
    child = star;
  } else if (element.size() == 1 && element != "?") {
    child = nodes_[node].characters.try_emplace(element[0], made).first->second;
  } else {
    for (const auto& [set, behind] : nodes_[node].sets) {
      if (set == element) return behind;
    }
    nodes_[node].sets.emplace_back(element, made);
  }
  if (child != made) return child;
  Node& added = nodes_.emplace_back();
  added.is_run = element == "*";
  added.is_parts = element == "**";
  return made;
}

const std::vector<size_t>& Globs::Match(std::string_view text) {
  next_.clear();
  ++step_;
  AddReached(0);
  for (const char c : text) {
    std::swap(now_, next_);
    next_.clear();
    ++step_;
    const bool is_dot = stars_ == Stars::kParts && c == '.';
    for (const size_t index : now_) {
      const Node& node = nodes_[index];
      if (node.is_parts || (node.is_run && !is_dot)) AddReached(index);
      if (const auto child = node.characters.find(c); child != node.characters.end()) {
        AddReached(child->second);
      }
      for (const auto& [set, child] : node.sets) {
        if (ElementMatches(set, c, stars_)) AddReached(child);
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

// Adds a node, and the nodes after its stars, which may also match nothing.
void Globs::AddReached(size_t node) {
  if (std::exchange(nodes_[node].reached, step_) == step_) return;
  next_.push_back(node);
  if (nodes_[node].run != 0) AddReached(nodes_[node].run);
  if (const size_t parts = nodes_[node].parts; parts != 0) {
    AddReached(parts);
    const auto& behind = nodes_[parts].characters;
    if (const auto next = behind.find('.'); next != behind.end()) AddReached(next->second);
  }
}

bool MatchesAny(const std::vector<std::string>& patterns, std::string_view path) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return PathMatches(pattern, path); });
}

}  // namespace shardinit
