// Draws the ranks of a plan, and the bytes that they hold, on the page of `plan --html`.
#pragma once

#include <vector>

#include "plan/balance.h"
#include "report/html.h"

namespace shardinit {

// Up to kMostSingleRanks ranks get one place each. Otherwise each place summarizes equally many
// consecutive ranks.
inline constexpr int64_t kMostSingleRanks = 1024;

void AddRankPictures(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance,
                     HtmlPage* page);

}  // namespace shardinit
