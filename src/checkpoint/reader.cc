#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/interrupt.h"
#include "checkpoint/bucket.h"
#include "checkpoint/receipt.h"

namespace shardinit {

CheckpointReader::CheckpointReader(const std::string& folder, const Plan& plan,
                                   const Digest& plan_sha256) {
  std::unordered_map<const Tensor*, std::set<Shape>> seen;
  const auto add = [&](const RankPlan& rank, const Receipt& receipt) {
    const std::string file = folder + "/" + RankFile(rank.rank);
    for (size_t i = 0; i < rank.shards.size(); ++i) {
      const Shard& shard = rank.shards[i];
      if (!seen[shard.tensor].insert(shard.box.offset).second) continue;
      Held& held = held_[shard.tensor];
      held.pieces.push_back({shard.box, file, receipt.offsets[i]});
      held.digests.push_back(receipt.digests[i]);
    }
    receipts_.push_back(EntryOf(plan, rank, receipt));
  };
  const auto need = [&](bool is_there, int64_t rank) {
    if (is_there) return;
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is unfinished: rank {} is missing", folder, rank),
                fmt::format("see `shardinit status {}`", folder));
  };
  if (IsBucketUrl(folder)) {
    const std::vector<int64_t> missing =
        BucketCheckpoint(folder).MissingRanks(plan, plan_sha256, AllRanks(plan.graph.mesh), add);
    need(missing.empty(), missing.empty() ? 0 : missing.front());
    return;
  }
  const CheckpointFolder checkpoint(folder);
  for (int64_t r = 0; r < plan.world_size(); ++r) {
    ThrowIfInterrupted();
    const RankPlan rank = PlanRank(plan, r);
    const auto receipt = FindReceipt(checkpoint, rank, plan_sha256);
    need(receipt.has_value(), r);
    add(rank, *receipt);
  }
}

}  // namespace shardinit
