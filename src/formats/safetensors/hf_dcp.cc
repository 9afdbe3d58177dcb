// Lays out the folder of torch.distributed.checkpoint's HuggingFaceStorageWriter: a safetensors
// file for each rank, with the places of the rank's boxes in the metadata.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/json.h"
#include "formats/safetensors/file.h"

namespace shardinit {
namespace {

// Returns the value of DCP_SHARDING_INFO, which is JSON inside the header's JSON.
std::string ShardingInfo(const std::vector<FileBox>& boxes) {
  JsonWriter out;
  out.BeginObject();
  for (const FileBox& box : boxes) {
    out.Key(box.tensor->path())
        .BeginObject()
        .Member("saved_offsets", InNumbers(box.box.offset, box.tensor->dtype()))
        .EndObject();
  }
  out.EndObject();
  return out.Take();
}

// Ranks that hold nothing have no file. The reader joins all boxes, so each box is in one file,
// whatever replicas the spec has. A file has one box of a tensor; a rank with more boxes has more
// files.
std::vector<FileLayout> LayOutHfDcp(const LayoutRequest& request) {
  const std::unordered_set<const Tensor*> wanted(request.tensors.begin(), request.tensors.end());
  std::vector<FileLayout> files;
  for (int64_t r = 0; r < request.plan.world_size(); ++r) {
    const RankPlan rank = PlanRank(request.plan, r);
    std::vector<std::vector<FileBox>> parts;
    for (const Shard& shard : rank.shards) {
      if (wanted.count(shard.tensor) != 0 &&
          request.plan.ShardingOf(*shard.tensor).IsFirstHolder(r)) {
        parts.resize(std::max(parts.size(), shard.part + 1));
        parts[shard.part].push_back({shard.tensor, shard.box, 0});
      }
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      const safetensors::Metadata metadata = {{"format", "pt"},
                                              {"DCP_VERSION", "1.0"},
                                              {"DCP_SHARDING_INFO", ShardingInfo(parts[part])}};
      files.push_back(
          safetensors::LayOutFile(fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors", r + 1,
                                              part + 1, parts.size()),
                                  std::move(parts[part]), metadata));
    }
  }
  return files;
}

}  // namespace

extern const Format kHfDcp = {
    .name = "hf-dcp",
    .description =
        "sharded safetensors of torch.distributed.checkpoint, for torchtitan and TorchTune",
    .lay_out = LayOutHfDcp,
    .reader = &kSafetensorsReader,
    .globbed = {"*.safetensors", "*.safetensors.index.json"},
};

}  // namespace shardinit
