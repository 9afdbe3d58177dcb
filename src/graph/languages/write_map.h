// Writes any sharding as a map of patterns that `sharding` accepts.
#pragma once

#include <string>

#include "graph/graph.h"

namespace shardinit {

// Returns YAML that covers every drawn tensor. Throws Error (kRefused) if tensors have uneven
// segments, nested axes or stages, which a map cannot express.
std::string WriteShardingMap(const InitGraph& graph);

}  // namespace shardinit
