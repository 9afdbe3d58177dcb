// Matches shell-like patterns with texts and with paths of tensors, in linear time and without
// locale.
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

// In every pattern `?` stands for one character, `[a-z]` for one of a set of bytes and `[!a-z]` for
// one outside it. The whole text must match. What a star stands for is one of two things.
enum class Stars {
  // `*` is any run of characters, dots too: names of files, and the lists of layouts and
  // optimizers.
  kRuns,
  // `*` is a part of a path or some of it, and the part `**` any number of parts, but at the end of
  // a pattern at least one: `sharding`, and every option of the command line. No `?` or set is a
  // dot.
  kParts,
};

bool Matches(std::string_view pattern, std::string_view text, Stars stars);
inline bool PathMatches(std::string_view pattern, std::string_view path) {
  return Matches(pattern, path, Stars::kParts);
}
// Returns whether a path matches any of the patterns.
bool MatchesAny(const std::vector<std::string>& patterns, std::string_view path);

// Matches many such patterns at once, and looks at their common beginnings once.
class Globs {
 public:
  Globs(const std::vector<std::string>& patterns, Stars stars);

  // Returns the numbers of the patterns that match, ascending, valid until the next call.
  const std::vector<size_t>& Match(std::string_view text);

 private:
  // A node stands for first elements that some patterns have in common.
  struct Node {
    std::map<char, size_t> characters;
    std::vector<std::pair<std::string, size_t>> sets;  // `?` is a set, too
    size_t run = 0, parts = 0;                         // behind `*` and `**`; 0: none
    bool is_run = false, is_parts = false;             // takes any more characters
    std::vector<size_t> patterns;                      // patterns that end here
    uint64_t reached = 0;                              // the last step that reached it
  };

  void Add(std::string_view pattern, size_t number);
  size_t Child(size_t node, std::string_view element);
  void Reach(size_t node);

  const Stars stars_;
  // These patterns have no special characters.
  std::unordered_map<std::string, std::vector<size_t>> names_;
  std::vector<Node> nodes_ = {Node()};
  uint64_t step_ = 0;
  std::vector<size_t> now_, next_;  // nodes that the text so far leads to
  std::vector<size_t> matches_;
};

}  // namespace shardinit
