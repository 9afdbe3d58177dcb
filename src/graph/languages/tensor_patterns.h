// Patterns of tensors' paths, as Stars::kParts has them, that a spec gives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/glob.h"
#include "graph/building.h"

namespace shardinit {

// A tensor that a spec declares, drawn or of a layout.
struct DeclaredPath {
  std::string path;
  size_t rank;  // rank of a drawn tensor
  bool is_drawn;
};

// Returns paths of the modules, then of all layouts; of paths that differ in numbers alone the
// first. It is slow, and meant for messages and rare cases.
std::vector<DeclaredPath> DeclaredPaths(const Building& building, const Mesh& mesh);

class TensorPatterns {
 public:
  explicit TensorPatterns(std::vector<Located<std::string>> patterns);

  // Returns the ascending indices of the patterns that match, valid until the next call.
  const std::vector<size_t>& Match(std::string_view path);
  const std::vector<Located<std::string>>& all() const { return patterns_; }
  // Returns the patterns that match neither a tensor so far nor a declared path.
  std::vector<size_t> Unused(const std::vector<DeclaredPath>& declared);
  bool AllUsed() const;
  // Reports unused patterns, with the path that the user may have meant.
  void CheckUse(Building& building, const Mesh& mesh);

 private:
  std::vector<Located<std::string>> patterns_;
  std::vector<bool> used_;
  Globs globs_;
};

// Returns the hint "did you mean": a declared path, with `*` for its numbers.
std::string NearestPath(std::string_view pattern, const std::vector<DeclaredPath>& declared);

}  // namespace shardinit
