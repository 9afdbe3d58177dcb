// Matches shell-like patterns with tensor paths, in linear time and without locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardinit {

// `*` matches any run of characters, dots too; `?` matches one character; `[a-z]` one of a set of
// bytes, `[!a-z]` one outside it. The whole path must match.
bool GlobMatches(std::string_view pattern, std::string_view text);

// Matches many such patterns at once, and looks at their common beginnings once.
class Globs {
 public:
  explicit Globs(const std::vector<std::string>& patterns);

  // Returns the numbers of the patterns that match, ascending, valid until the next call.
  const std::vector<uint32_t>& Match(std::string_view text);

 private:
  // A node stands for first elements that some patterns have in common.
  struct Node {
    std::map<char, size_t> characters;
    std::vector<std::pair<std::string, size_t>> sets;  // `?` is a set, too
    size_t star = 0;                                   // 0: none
    bool is_star = false;                              // takes any more characters
    std::vector<uint32_t> patterns;                    // patterns that end here
    uint64_t reached = 0;                              // the last step that reached it
  };

  void Add(std::string_view pattern, uint32_t number);
  size_t Child(size_t node, std::string_view element);
  void Reach(size_t node);

  // These patterns have no special characters.
  std::unordered_map<std::string, std::vector<uint32_t>> names_;
  std::vector<Node> nodes_ = {Node()};
  uint64_t step_ = 0;
  std::vector<size_t> now_, next_;  // nodes that the text so far leads to
  std::vector<uint32_t> matches_;
};

}  // namespace shardinit
