// The layout of a result on the mesh, in the two forms that frameworks read.
#pragma once

#include <string>

#include "graph/graph.h"

namespace shardinit::program {

// Returns `{devices=[2,1,4]<=[8] last_tile_dim_replicate}` (mhlo.sharding). With `stacked`, the
// tensor has one more dimension, the first, that nothing shards.
std::string ShardingText(const Mesh& mesh, const PartitionSpec& partition, bool stacked = false);
// Returns `#sdy.sharding<@mesh, [{"fsdp"}, {}]>`.
std::string ShardyText(const Mesh& mesh, const PartitionSpec& partition, bool stacked = false);
// Returns `sdy.mesh @mesh = <["fsdp"=2, "tensor"=4]>`.
std::string ShardyMeshText(const Mesh& mesh);

// Throws Error (kUsage) if no annotation can say how the tensor is sharded.
void RequireAnnotation(const Mesh& mesh, const Tensor& tensor);

}  // namespace shardinit::program
