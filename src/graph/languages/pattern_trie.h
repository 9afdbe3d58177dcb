// Matches many patterns of paths at once, in a time that depends on the parts of the path and not
// on the number of patterns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardinit {

// `*` stands for one part of a path or for some of it, `**` for any number of parts (at least one
// at the end of a pattern), `?` and `[a-z]` for one character.
class PatternTrie {
 public:
  // Patterns are numbered from 0.
  void Add(std::string_view pattern);
  // Returns the ascending numbers of the patterns that match.
  void Match(std::string_view path, std::vector<size_t>* matches);

 private:
  // A prefix that some patterns share. A node behind `**` may take any number of further parts.
  struct Node {
    std::map<std::string, size_t, std::less<>> literals;
    std::vector<std::pair<std::string, size_t>> globs;
    size_t any = 0, stars = 0;  // children by `*` and `**`; 0: none
    bool is_stars = false;
    std::vector<size_t> patterns;     // patterns that end here
    uint64_t reached = 0, tried = 0;  // the step at which this was done last
  };

  size_t Child(size_t node, std::string_view part);
  void Reach(size_t node);
  void Try(size_t node, std::string_view part);

  std::vector<Node> nodes_ = {Node()};
  size_t count_ = 0;
  uint64_t step_ = 0;
  std::vector<size_t> now_, next_;  // nodes that the parts so far lead to
};

}  // namespace shardinit
