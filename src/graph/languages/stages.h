// Computes how many layers each stage of a pipeline has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardinit {

// How the spec distributes layers over stages.
struct StageCounts {
  int64_t layers = 0, ranks = 1, rounds = 1;
  int64_t before = 0, behind = 0;            // how many layers each end counts as
  std::optional<int64_t> in_first, in_last;  // layers of the first and last rank
  bool remainder = false;                    // the first stages have one more layer

  int64_t stages() const { return ranks * rounds; }
};

// Returns the number of layers of each stage. If that is impossible, returns nothing, and
// `*problem` is the reason.
std::optional<std::vector<int64_t>> Distribute(const StageCounts& of, std::string* problem);

}  // namespace shardinit
