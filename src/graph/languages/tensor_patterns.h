// Matches tensor paths against the patterns of a spec (in the syntax of Stars::kParts).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/glob.h"
#include "graph/building.h"

namespace shardinit {

// A tensor that a spec declares: a drawn one or one of a layout.
struct DeclaredPath {
  std::string path;
  size_t rank;  // rank of a drawn tensor
  bool is_drawn;
};

// Returns paths of the modules, then of all layouts. Of paths that differ only in numbers, returns
// the first. This is slow, and meant for messages and rare cases.
std::vector<DeclaredPath> DeclaredPaths(const Building& building, const Mesh& mesh);

class TensorPatterns {
 public:
  explicit TensorPatterns(std::vector<Located<std::string>> patterns);

  // Returns the ascending indices of the patterns that match, valid until the next call.
  const std::vector<size_t>& Match(std::string_view path);
  const std::vector<Located<std::string>>& all() const { return patterns_; }
  // Returns the patterns that have not matched any tensor and do not match a declared path.
  std::vector<size_t> Unused(const std::vector<DeclaredPath>& declared);
  bool AllUsed() const;
  // Reports unused patterns and suggests the path that the user may have meant.
  void CheckUse(Building& building, const Mesh& mesh);

 private:
  std::vector<Located<std::string>> patterns_;
  std::vector<bool> used_;
  Globs globs_;
};

// Returns a "did you mean" hint: a declared path with `*` for its numbers.
std::string NearestPath(std::string_view pattern, const std::vector<DeclaredPath>& declared);

}  // namespace shardinit
