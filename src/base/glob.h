// Matches shell-like patterns against texts and tensor paths, in linear time and independent of the
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

// In every pattern, `?` matches one character, `[a-z]` one byte of a set and `[!a-z]` one byte
// outside it. The pattern must match the whole text. Stars have one of two meanings.
enum class Stars {
  // `*` matches any characters, including dots. For file names, and the lists of layouts and
  // optimizers.
  kRuns,
  // `*` matches any characters within a part of a path. The part `**` matches any number of parts,
  // or at least one at the end of a pattern. `?` and sets do not match dots. For `sharding`, and
  // every command-line option.
  kParts,
};

bool Matches(std::string_view pattern, std::string_view text, Stars stars);
inline bool PathMatches(std::string_view pattern, std::string_view path) {
  return Matches(pattern, path, Stars::kParts);
}
// Returns whether any of the patterns matches a path.
bool MatchesAny(const std::vector<std::string>& patterns, std::string_view path);

// Matches many patterns at once, and checks common prefixes only once.
class Globs {
 public:
  Globs(const std::vector<std::string>& patterns, Stars stars);

  // Returns the ascending indices of the patterns that match, valid until the next call.
  const std::vector<size_t>& Match(std::string_view text);

 private:
  // A node is a prefix, in elements, that patterns share.
  struct Node {
    std::map<char, size_t> characters;
    std::vector<std::pair<std::string, size_t>> sets;  // including `?`
    size_t run = 0, parts = 0;                         // after `*` and `**`; 0: none
    bool is_run = false, is_parts = false;             // accepts any more characters
    std::vector<size_t> patterns;                      // patterns that end here
    uint64_t reached = 0;                              // the last step that reached it
  };

  void Add(std::string_view pattern, size_t number);
  size_t Child(size_t node, std::string_view element);
  void AddReached(size_t node);

  const Stars stars_;
  // Patterns without special characters.
  std::unordered_map<std::string, std::vector<size_t>> names_;
  std::vector<Node> nodes_ = {Node()};
  uint64_t step_ = 0;
  std::vector<size_t> now_, next_;  // nodes that the text so far reaches
  std::vector<size_t> matches_;
};

}  // namespace shardinit
