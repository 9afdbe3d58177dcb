// Merges specs: what one says over what another one says, such as a file that it includes.
#pragma once

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Returns the root of both, whose keys have the values of `over` where both have them; maps are
// merged in turn, but for those that say one thing, as an initializer does.
const Node* MergeSpecs(const Node& base, const Node& over, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
