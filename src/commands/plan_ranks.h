// Draws the ranks of a plan, and the bytes that they hold, on the page of `plan --html`.
#pragma once

#include <vector>

#include "plan/balance.h"
#include "report/html.h"

namespace shardinit {

// With up to kMostSingleRanks ranks, the picture has one cell for each rank. With more, each cell
// summarizes the same number of consecutive ranks.
inline constexpr int64_t kMostSingleRanks = 1024;

void AddRankPictures(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance,
                     HtmlPage* page);

}  // namespace shardinit
