// Divides the ranks of a plan among jobs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// Returns for each part, 0 to count - 1, the first of its ranks, and the number of ranks at the
// end: parts are contiguous, together all ranks, and their files' bytes as equal as whole ranks
// allow. No part has more than the mean and the bytes of one rank. With more parts than ranks some
// are empty.
std::vector<int64_t> RanksOfParts(const Plan& plan, int64_t count);

}  // namespace shardinit
