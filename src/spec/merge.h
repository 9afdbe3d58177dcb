// Merges two specs, such as a file and its include.
#pragma once

#include "base/diagnostics.h"
#include "spec/yaml.h"

namespace shardinit {

// Returns `base` with the keys of `over` added or replaced. Maps are merged recursively, except
// maps that mean one thing, such as an initializer. Lists of assertions are joined.
const Node* MergeSpecs(const Node& base, const Node& over, NodeStore& store,
                       Diagnostics& diagnostics);

}  // namespace shardinit
