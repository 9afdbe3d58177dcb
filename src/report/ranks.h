// Writes lists of ranks as people and `--ranks` do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardinit {

// Writes ascending ranks as `0,3-5`, with `…` after `most` ranges. 0 is no limit.
std::string RanksInText(const std::vector<int64_t>& ranks, size_t most = 0);

}  // namespace shardinit
