// Lists of ranks, as people and `--ranks` write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardinit {

// Ascending ranks as `0,3-5`; after `most` ranges: `…`. 0: no limit.
std::string RanksInText(const std::vector<int64_t>& ranks, size_t most = 0);

}  // namespace shardinit
