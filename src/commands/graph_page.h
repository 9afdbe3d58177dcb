// Shows the tensors of a graph as a page of pictures, for `graph --html`.
#pragma once

#include <string>

#include "commands/graph_tensors.h"

namespace shardinit {

// Modules are open down to level `depth` of the tree; 0 is no limit. The page has a bounded size,
// and says what is left out for this.
std::string GraphPage(const Shown& shown, int64_t depth);

}  // namespace shardinit
