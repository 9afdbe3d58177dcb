// The folder that torch.distributed.checkpoint's HuggingFaceStorageWriter makes:
// a safetensors file for each rank, with the place of its boxes in the metadata.
#include <fmt/format.h>

#include <unordered_set>

#include "base/json.h"
#include "formats/safetensors/folder.h"
#include "formats/safetensors/header.h"

namespace shardinit {
namespace {

// The value of DCP_SHARDING_INFO: JSON inside the header's JSON.
std::string ShardingInfo(const std::vector<FileBox>& boxes) {
  JsonWriter out;
  out.BeginObject();
  for (const FileBox& box : boxes) {
    out.Key(box.tensor->path).BeginObject().Member("saved_offsets", box.box.offset).EndObject();
  }
  out.EndObject();
  return out.Take();
}

// Ranks that hold nothing have no file. The reader takes the union of all
// boxes, so that each is in one file, whatever the spec says of replicas.
std::vector<FileLayout> LayOutDcp(const LayoutRequest& request) {
  const std::unordered_set<const Tensor*> wanted(request.tensors.begin(), request.tensors.end());
  std::vector<FileLayout> files;
  for (int64_t r = 0; r < request.plan.world_size(); ++r) {
    const RankPlan rank = PlanRank(request.plan, r);
    std::vector<FileBox> boxes;
    for (const Shard& shard : rank.shards) {
      if (wanted.count(shard.tensor) != 0 &&
          request.plan.ShardingOf(*shard.tensor).IsFirstHolder(r)) {
        boxes.push_back({shard.tensor, shard.box, 0});
      }
    }
    if (boxes.empty()) continue;
    const safetensors::Metadata metadata = {
        {"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", ShardingInfo(boxes)}};
    files.push_back(
        safetensors::LayOutFile(fmt::format("shard-{:05}-model-00001-of-00001.safetensors", r + 1),
                                std::move(boxes), metadata));
  }
  return files;
}

}  // namespace

extern const Format kDcp = {
    .name = "dcp",
    .lay_out = LayOutDcp,
    .reader = &safetensors::kReader,
};

}  // namespace shardinit
