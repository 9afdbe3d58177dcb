#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/interrupt.h"
#include "checkpoint/receipt.h"

namespace shardinit {

CheckpointReader::CheckpointReader(const std::string& folder, const Plan& plan,
                                   const Digest& plan_sha256) {
  const CheckpointFolder checkpoint(folder);
  std::unordered_map<const Tensor*, std::set<Shape>> seen;
  for (int64_t r = 0; r < plan.world_size(); ++r) {
    ThrowIfInterrupted();
    const RankPlan rank = PlanRank(plan, r);
    const auto receipt = FindReceipt(checkpoint, rank, plan_sha256);
    if (!receipt) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` is unfinished: rank {} is missing", folder, r),
                  fmt::format("see `shardinit status {}`", folder));
    }
    const std::string file = folder + "/" + RankFile(r);
    for (size_t i = 0; i < rank.shards.size(); ++i) {
      const Shard& shard = rank.shards[i];
      if (!seen[shard.tensor].insert(shard.box.offset).second) continue;
      Held& held = held_[shard.tensor];
      held.pieces.push_back({shard.box, file, receipt->offsets[i]});
      held.digests.push_back(receipt->digests[i]);
    }
    receipts_.push_back(EntryOf(plan, rank, *receipt));
  }
}

}  // namespace shardinit
