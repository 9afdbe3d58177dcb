// Which mesh axes cut which dimension of a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/mesh.h"

namespace shardinit {

// Per dimension the indices of the mesh axes that cut it, the major one first.
using PartitionSpec = std::vector<std::vector<int>>;

// `[fsdp, -, data+tensor]`.
std::string InText(const PartitionSpec& spec, const Mesh& mesh);

// In how many parts a dimension is cut.
int64_t PartsOf(const std::vector<int>& axes, const Mesh& mesh);

}  // namespace shardinit
