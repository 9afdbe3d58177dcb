// Divides the ranks of a plan among jobs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// One of the jobs that share a piece of work.
struct JobPart {
  int64_t index, count;  // the index is less than the count
};

// Returns for each part, 0 to count - 1, the first of the things in it, and the number of things at
// the end: parts are contiguous, together all things, and their bytes as equal as whole things
// allow. No part has more than the mean and the bytes of one thing. With more parts than things
// some are empty.
std::vector<int64_t> CutInParts(std::vector<int64_t> bytes, int64_t count);

// Returns the same of the ranks of a plan, by the bytes in their files.
std::vector<int64_t> RanksOfParts(const Plan& plan, int64_t count);

}  // namespace shardinit
