// Patterns of tensors' paths: `*` stands for a part of a path or for some of it, `**` for any
// number of parts, `?` and `[a-z]` for a character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/building.h"
#include "graph/languages/pattern_trie.h"

namespace shardinit {

bool PathMatches(std::string_view pattern, std::string_view path);

// That a part of a path is.
std::optional<int64_t> NumberOf(std::string_view part);

// A tensor that a spec declares, drawn or of a layout.
struct DeclaredPath {
  std::string path;
  size_t rank;  // Of a drawn one.
  bool is_drawn;
};

// Of the modules and then all layouts; of those that differ in numbers alone the first. For
// messages, and for what is rare.
std::vector<DeclaredPath> DeclaredPaths(const Building& building, const Mesh& mesh);

class TensorPatterns {
 public:
  explicit TensorPatterns(std::vector<Located<std::string>> patterns);

  // Ascending indices of those that match, until the next call.
  const std::vector<size_t>& Match(std::string_view path);
  const std::vector<Located<std::string>>& all() const { return patterns_; }
  // Those that matched no tensor, nor match a declared one.
  std::vector<size_t> Unused(const std::vector<DeclaredPath>& declared);
  bool AllUsed() const;
  // Reports these, in the words that the user would look for.
  void CheckUse(Building& building, const Mesh& mesh);

 private:
  std::vector<Located<std::string>> patterns_;
  std::vector<bool> used_;
  PatternTrie trie_;
  std::vector<size_t> matches_;  // Of the last path.
};

// "did you mean": a declared path, with `*` for its numbers.
std::string NearestPath(std::string_view pattern, const std::vector<DeclaredPath>& declared);

}  // namespace shardinit
