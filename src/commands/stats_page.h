// Renders statistics of tensors' values as an HTML page of pictures, for `stats --html`.
#pragma once

#include <string>
#include <vector>

#include "stats/measure.h"

namespace shardinit {

// The page has a bounded size, and notes its omissions.
std::string StatsPage(const std::string& name, const std::vector<Measurement>& results);

}  // namespace shardinit
