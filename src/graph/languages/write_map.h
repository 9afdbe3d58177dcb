// Writes any sharding as a map of patterns that `sharding` takes.
#pragma once

#include <string>

#include "graph/graph.h"

namespace shardinit {

// Returns YAML with every drawn tensor. Throws Error (kRefused) if tensors have uneven segments,
// nested axes or stages, which a map cannot say.
std::string WriteShardingMap(const InitGraph& graph);

}  // namespace shardinit
