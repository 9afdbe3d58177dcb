// Shows what the values of tensors are like as a page of pictures, for `stats --html`.
#pragma once

#include <string>
#include <vector>

#include "stats/measure.h"

namespace shardinit {

// The page has a bounded size, and says what is left out for this.
std::string StatsPage(const std::string& name, const std::vector<Measurement>& results);

}  // namespace shardinit
