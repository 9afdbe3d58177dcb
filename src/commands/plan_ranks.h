// Shows the ranks of a plan and what they hold on the page of `plan --html`.
#pragma once

#include <vector>

#include "plan/balance.h"
#include "report/html.h"

namespace shardinit {

// Up to kMostSingleRanks ranks have a place each. More are summarized: a place is for consecutive
// ranks, equally many for each.
inline constexpr int64_t kMostSingleRanks = 1024;

void AddRankPictures(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance,
                     HtmlPage* page);

}  // namespace shardinit
