// Renders the tensors of a graph as an HTML page of pictures, for `graph --html`.
#pragma once

#include <string>

#include "commands/graph_tensors.h"

namespace shardinit {

// Opens modules down to level `depth` of the tree; 0 means no limit. The page has a bounded size,
// and notes its omissions.
std::string GraphPage(const Shown& shown, int64_t depth);

}  // namespace shardinit
