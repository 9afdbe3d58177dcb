// Writes the sharding of a result on the mesh, in the two forms that frameworks read.
#pragma once

#include <string>

#include "graph/graph.h"

namespace shardinit::program {

// Returns `{devices=[2,1,4]<=[8] last_tile_dim_replicate}` (mhlo.sharding). With `stacked`, the
// tensor has an additional first dimension, which is not sharded.
std::string ShardingText(const Mesh& mesh, const PartitionSpec& partition, bool stacked = false);
// Returns `#sdy.sharding<@mesh, [{"fsdp"}, {}]>`.
std::string ShardyText(const Mesh& mesh, const PartitionSpec& partition, bool stacked = false);
// Returns `sdy.mesh @mesh = <["fsdp"=2, "tensor"=4]>`.
std::string ShardyMeshText(const Mesh& mesh);

// Throws Error (kUsage) if no annotation can express the tensor's sharding.
void RequireAnnotation(const Mesh& mesh, const Tensor& tensor);

}  // namespace shardinit::program
