// Many patterns of paths at once: those that match a path are found in the time that its parts
// take, however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardinit {

// `*` stands for a part of a path or for some of it, `**` for any number of parts, at the end of a
// pattern for one at least, `?` and `[a-z]` for a character.
class PatternTrie {
 public:
  // Patterns are numbered from 0.
  void Add(std::string_view pattern);
  // Ascending numbers of those that match.
  void Match(std::string_view path, std::vector<size_t>* matches);

 private:
  // What is the same in the first parts of some patterns. Behind `**` it may take any more parts.
  struct Node {
    std::map<std::string, size_t, std::less<>> literals;
    std::vector<std::pair<std::string, size_t>> globs;
    size_t any = 0, stars = 0;  // Of `*` and `**`; 0: none.
    bool is_stars = false;
    std::vector<size_t> patterns;     // That end here.
    uint64_t reached = 0, tried = 0;  // At which step.
  };

  size_t Child(size_t node, std::string_view part);
  void Reach(size_t node);
  void Try(size_t node, std::string_view part);

  std::vector<Node> nodes_ = {Node()};
  size_t count_ = 0;
  uint64_t step_ = 0;
  std::vector<size_t> now_, next_;  // Nodes that the parts so far lead to.
};

}  // namespace shardinit
