// A plan says which rank holds what. It is made from the graph alone, and any rank's part of it
// without the other ranks' parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "graph/graph.h"
#include "sharding/mesh.h"

namespace shardinit {

class JsonWriter;

// Versions of a checkpoint's files. A plan has the newest if a tensor has segments, nested axes or
// pins, else the older one, so that older readers read what they can.
inline constexpr int kFormatVersion = 1, kNewestFormatVersion = 2;

// One box of one tensor in one rank's file.
struct Shard {
  const Tensor* tensor;
  Box box;
  size_t part = 0;  // The box's number among the rank's boxes of the tensor.

  int64_t bytes() const { return ElementCount(box.shape) * InfoOf(tensor->dtype()).bytes; }
};

struct RankPlan {
  int64_t rank;
  int format_version;  // the plan's version
  std::vector<int64_t> coordinate;
  std::vector<Shard> shards;  // shards in the order of the graph

  int64_t bytes() const;  // bytes of all shards
};

struct Plan {
  InitGraph graph;
  int format_version = kFormatVersion;
  int64_t parameters = 0;      // Elements of all drawn tensors except buffers.
  int64_t bytes = 0;           // Stored bytes with padding and ties; replicas count once.
  int64_t boxes = 0;           // Different non-empty boxes over all ranks.
  int64_t most_boxes = 0;      // The most boxes of one tensor.
  int64_t max_rank_bytes = 0;  // The most bytes on one rank, whichever rank stores them.

  int64_t world_size() const { return graph.mesh.world_size(); }
  Sharding ShardingOf(const Tensor& tensor) const {
    return {graph.mesh, graph.replicas, tensor.shape(), tensor.partition()};
  }
};

Plan MakePlan(InitGraph graph);

// Returns what `rank` holds and writes. With Replicas::kDedupe only the first replica of a box
// writes it.
RankPlan PlanRank(const Plan& plan, int64_t rank);
// Returns the bytes of these ranks' shards, each rank counted once; 2^63 - 1 if there are more.
int64_t BytesIn(const Plan& plan, const std::vector<int64_t>& ranks);
// Returns the same for all ranks: replicas count as often as they are stored.
int64_t BytesInFiles(const Plan& plan);
std::vector<int64_t> AllRanks(const Mesh& mesh);

// These names are relative to the checkpoint's folder, or to the root of a file.
std::string RankFile(int64_t rank);     // ranks/rank-00017.h5
std::string ReceiptFile(int64_t rank);  // ranks/rank-00017.json
// Returns the rank that has this name in the folder of ranks, as in `rank-00017`, with `suffix`
// behind it; -1: none has.
int64_t RankOf(std::string_view name, std::string_view suffix);
// Returns `/model/layers/0/…`; the rank's further boxes have a suffix that no path has: `…@1`.
std::string DatasetPath(const Tensor& tensor, size_t part = 0);

// Writes the member `mesh` of plan.json, manifest.json and `graph --json`.
void WriteMesh(const Mesh& mesh, JsonWriter& out);
std::string_view NameOf(Replicas replicas);  // the name in specs and files
// WriteDrawn() writes the members of plan.json that say how a tensor is drawn; WriteStored() those
// that say how it is stored, with its view if it has one.
void WriteDrawn(const Tensor& tensor, JsonWriter& out);
void WriteStored(const Tensor& tensor, const InitGraph& graph, JsonWriter& out);

// Writes plan.json in canonical form: equal plans give equal bytes.
std::string WritePlan(const Plan& plan);
// Throws Error (kRefused) if the text is not such a plan.
Plan ReadPlan(std::string_view text, const std::string& path);

// devices.json says which devices have the ranks of a checkpoint's mesh, unless rank r is simply on
// device r. It is no part of the plan: it decides no byte of a rank's file. The text is canonical;
// it is empty if there is nothing to say.
std::string WriteDeviceLayout(const Mesh& mesh);
// `mesh` has no device layout yet. Throws Error (kRefused) if the text is not such a file.
DeviceLayout ReadDeviceLayout(std::string_view text, const std::string& path, const Mesh& mesh);

// Writes the rank's member of `devices` in manifest.json and `plan --json`.
void WriteDevice(const DeviceMap& devices, const Mesh& mesh, int64_t rank, JsonWriter& out);

}  // namespace shardinit
