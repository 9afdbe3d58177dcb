// A sharding, of whatever origin, as a map of patterns that `sharding` takes.
#pragma once

#include <string>

#include "graph/graph.h"

namespace shardinit {

// YAML. Of what is drawn; each tensor is in it. Throws Error (kRefused) if tensors have segments,
// nested axes or stages, which a map does not say.
std::string WriteShardingMap(const InitGraph& graph);

}  // namespace shardinit
