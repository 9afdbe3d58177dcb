// Who holds what. A plan is made from the graph alone, and any rank's part of
// it without the other ranks' parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "graph/graph.h"

namespace shardinit {

class JsonWriter;

// Of the files of a checkpoint: the newest where a tensor has segments, nested axes or pins, else
// the other, so that older readers read what they can.
inline constexpr int kFormatVersion = 1, kNewestFormatVersion = 2;

// One box of one tensor in one rank's file.
struct Shard {
  const Tensor* tensor;
  Box box;
  size_t part = 0;  // Its number among the rank's boxes of the tensor.

  int64_t bytes() const { return ElementCount(box.shape) * InfoOf(tensor->dtype).bytes; }
};

struct RankPlan {
  int64_t rank;
  int format_version;  // The plan's.
  std::vector<int64_t> coordinate;
  std::vector<Shard> shards;  // In the order of the graph.

  int64_t bytes() const;  // Of all shards.
};

struct Plan {
  InitGraph graph;
  int format_version = kFormatVersion;
  int64_t parameters = 0;      // Elements of all that is drawn, but buffers.
  int64_t bytes = 0;           // Of what is stored: with padding and ties, replicas once.
  int64_t boxes = 0;           // Different non-empty boxes over all ranks.
  int64_t most_boxes = 0;      // Of one tensor.
  int64_t max_rank_bytes = 0;  // That any rank holds, whoever stores it.

  int64_t world_size() const { return graph.mesh.world_size(); }
  Sharding ShardingOf(const Tensor& tensor) const {
    return {graph.mesh, graph.replicas, tensor.shape, tensor.partition};
  }
};

Plan MakePlan(InitGraph graph);

// What `rank` holds and writes: with Replicas::kDedupe a replicated box only
// if `rank` is its first replica.
RankPlan PlanRank(const Plan& plan, int64_t rank);
// Bytes of the shards of these ranks, each rank once; 2^63 - 1 if they are more.
int64_t BytesIn(const Plan& plan, const std::vector<int64_t>& ranks);

// Names within a checkpoint's folder and file.
std::string RankFile(int64_t rank);     // ranks/rank-00017.h5
std::string ReceiptFile(int64_t rank);  // ranks/rank-00017.json
// The rank whose receipt has this name in the folder of ranks.
std::optional<int64_t> RankOfReceipt(const std::string& name);
// /model/layers/0/…; of a rank's further boxes with a suffix that no path has: `…@1`.
std::string DatasetPath(const Tensor& tensor, size_t part = 0);

// The member `mesh` of plan.json, manifest.json and `graph --json`.
void WriteMesh(const Mesh& mesh, JsonWriter& out);
std::string_view NameOf(Replicas replicas);  // As specs and files write it.
// The members of plan.json that say how a tensor is drawn; how it is stored, if it
// has a view also that.
void WriteDrawn(const Tensor& tensor, JsonWriter& out);
void WriteStored(const Tensor& tensor, const InitGraph& graph, JsonWriter& out);

// plan.json: canonical, so that equal plans are equal bytes.
std::string WritePlan(const Plan& plan);
// Throws Error (kRefused) if the text is not such a plan.
Plan ReadPlan(std::string_view text, const std::string& path);

}  // namespace shardinit
