#include "graph/languages/pattern_trie.h"

#include <algorithm>
#include <utility>

#include "base/glob.h"

namespace shardinit {
namespace {

// Takes the first part off `path`; returns false if there is none.
bool TakePart(std::string_view* path, std::string_view* part) {
  if (path->data() == nullptr) return false;
  const size_t dot = path->find('.');
  *part = path->substr(0, dot);
  *path = dot == path->npos ? std::string_view() : path->substr(dot + 1);
  return true;
}

}  // namespace

void PatternTrie::Add(std::string_view pattern) {
  size_t node = 0;
  for (std::string_view part; TakePart(&pattern, &part);) node = Child(node, part);
  nodes_[node].patterns.push_back(count_++);
}

size_t PatternTrie::Child(size_t node, std::string_view part) {
  const auto make = [&] {
    nodes_.emplace_back();
    return nodes_.size() - 1;
  };
  if (part == "**") {
    if (nodes_[node].stars == 0) {
      const size_t child = make();
      nodes_[node].stars = child;
      nodes_[child].is_stars = true;
    }
    return nodes_[node].stars;
  }
  if (part == "*") {
    if (nodes_[node].any == 0) {
      const size_t child = make();
      nodes_[node].any = child;
    }
    return nodes_[node].any;
  }
  if (part.find_first_of("*?[") == part.npos) {
    if (const auto known = nodes_[node].literals.find(part); known != nodes_[node].literals.end()) {
      return known->second;
    }
    const size_t child = make();
    nodes_[node].literals.emplace(part, child);
    return child;
  }
  for (const auto& [glob, child] : nodes_[node].globs) {
    if (glob == part) return child;
  }
  const size_t child = make();
  nodes_[node].globs.emplace_back(part, child);
  return child;
}

void PatternTrie::Match(std::string_view path, std::vector<size_t>* matches) {
  now_ = {0};
  for (std::string_view part; !now_.empty() && TakePart(&path, &part);) {
    ++step_;
    next_.clear();
    for (const size_t node : now_) Try(node, part);
    std::swap(now_, next_);
  }
  matches->clear();
  for (const size_t node : now_) {
    matches->insert(matches->end(), nodes_[node].patterns.begin(), nodes_[node].patterns.end());
  }
  std::sort(matches->begin(), matches->end());
}

void PatternTrie::Reach(size_t node) {
  if (std::exchange(nodes_[node].reached, step_) != step_) next_.push_back(node);
}

// Tries the children of a node, and also those behind `**`, which may stand for no part.
void PatternTrie::Try(size_t index, std::string_view part) {
  while (std::exchange(nodes_[index].tried, step_) != step_) {
    const Node& node = nodes_[index];
    if (node.is_stars) Reach(index);
    if (node.any != 0) Reach(node.any);
    if (const auto child = node.literals.find(part); child != node.literals.end()) {
      Reach(child->second);
    }
    for (const auto& [glob, child] : node.globs) {
      if (GlobMatches(glob, part)) Reach(child);
    }
    if (node.stars == 0) return;
    index = node.stars;
  }
}

}  // namespace shardinit
