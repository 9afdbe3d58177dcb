// Decides which rank holds which box. A plan depends only on the graph, and each rank's part can be
// computed without the other ranks' parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "sharding/mesh.h"

namespace shardinit {

class JsonWriter;

// Versions of a checkpoint's files. A plan has the newest version if a tensor has segments, nested
// axes or pins. Otherwise it has the older version, so that older programs can read it.
inline constexpr int kFormatVersion = 1, kNewestFormatVersion = 2;

// One box of one tensor in one rank's file.
struct Shard {
  const Tensor* tensor;
  Box box;
  size_t part = 0;  // number of the box among the rank's boxes of the tensor

  int64_t bytes() const { return ElementCount(box.shape) * InfoOf(tensor->dtype()).bytes; }
};

struct RankPlan {
  int64_t rank;
  int format_version;  // of the plan
  std::vector<int64_t> coordinate;
  std::vector<Shard> shards;  // in the order of the graph

  int64_t bytes() const;  // of all shards
};

struct Plan {
  InitGraph graph;
  int format_version = kFormatVersion;
  int64_t parameters = 0;      // elements of all drawn tensors except buffers
  int64_t bytes = 0;           // stored bytes with padding and ties; replicas count once
  int64_t boxes = 0;           // distinct non-empty boxes on all ranks
  int64_t most_boxes = 0;      // the most boxes of one tensor
  int64_t max_rank_bytes = 0;  // the most bytes on one rank, whichever rank stores them

  int64_t world_size() const { return graph.mesh.world_size(); }
  Sharding ShardingOf(const Tensor& tensor) const {
    return {graph.mesh, graph.replicas, tensor.shape(), tensor.partition()};
  }
};

Plan MakePlan(InitGraph graph);

// Returns the boxes that `rank` holds and writes. With Replicas::kDedupe, only the first replica of
// a box is written.
RankPlan PlanRank(const Plan& plan, int64_t rank);
// Returns the bytes of these ranks' shards, counting each rank once; 2^63 - 1 on overflow.
int64_t BytesIn(const Plan& plan, const std::vector<int64_t>& ranks);
// Returns the same for all ranks. Each stored replica counts.
int64_t BytesInFiles(const Plan& plan);
std::vector<int64_t> AllRanks(const Mesh& mesh);

// Names relative to the checkpoint's folder, or to the root of a file.
std::string RankFile(int64_t rank);     // ranks/rank-00017.h5
std::string ReceiptFile(int64_t rank);  // ranks/rank-00017.json
// Returns the rank whose file in the folder of ranks has this name: `rank-00017`, then `suffix`.
// Returns -1 if no rank has it.
int64_t RankOf(std::string_view name, std::string_view suffix);
// Returns `/model/layers/0/…`. The rank's further boxes get a suffix that no path has: `…@1`.
std::string DatasetPath(const Tensor& tensor, size_t part = 0);

// Writes the member `mesh` of plan.json, manifest.json and `graph --json`.
void WriteMesh(const Mesh& mesh, JsonWriter& out);
std::string_view NameOf(Replicas replicas);  // as in specs and files
// WriteDrawn() writes the members of plan.json that define how a tensor is drawn. WriteStored()
// writes how it is stored, including its view.
void WriteDrawn(const Tensor& tensor, JsonWriter& out);
void WriteStored(const Tensor& tensor, const InitGraph& graph, JsonWriter& out);

// Writes plan.json in canonical form: equal plans give equal bytes.
std::string WritePlan(const Plan& plan);
// Throws Error (kRefused) if the text is not such a plan.
Plan ReadPlan(std::string_view text, const std::string& path);

// Writes devices.json, which maps the mesh's ranks to devices; empty if rank r is simply on device
// r. The device layout is not part of the plan, because it does not affect rank files. The text is
// canonical.
std::string WriteDeviceLayout(const Mesh& mesh);
// `mesh` must not have a device layout yet. Throws Error (kRefused) if the text is not such a file.
DeviceLayout ReadDeviceLayout(std::string_view text, const std::string& path, const Mesh& mesh);

// Writes the rank's member of `devices` in manifest.json and `plan --json`.
void WriteDevice(const DeviceMap& devices, const Mesh& mesh, int64_t rank, JsonWriter& out);

}  // namespace shardinit
