// Divides the ranks of a plan among jobs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// One of several jobs that share a piece of work.
struct JobPart {
  int64_t index, count;  // `index` is less than `count`
};

// Cuts things of these sizes into `count` contiguous parts whose bytes are as equal as possible.
// Returns the first thing of each part, then the number of things. No part exceeds the mean by more
// than one thing's bytes. If there are more parts than things, some parts are empty.
std::vector<int64_t> CutInParts(std::vector<int64_t> bytes, int64_t count);

// Returns the same for the ranks of a plan, by the bytes in their files.
std::vector<int64_t> RanksOfParts(const Plan& plan, int64_t count);

}  // namespace shardinit
