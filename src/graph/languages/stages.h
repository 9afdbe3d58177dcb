// How many layers each stage of a pipeline has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardinit {

// The number of layers of each stage, as the spec says it.
struct StageCounts {
  int64_t layers = 0, ranks = 1, rounds = 1;
  int64_t before = 0, behind = 0;            // layers that the ends count as
  std::optional<int64_t> in_first, in_last;  // layers of the ranks at the ends
  bool remainder = false;                    // the first stages have one more

  int64_t stages() const { return ranks * rounds; }
};

// Returns the number of layers of each stage; nothing if that cannot be, and `problem` says why.
std::optional<std::vector<int64_t>> Distribute(const StageCounts& of, std::string* problem);

}  // namespace shardinit
