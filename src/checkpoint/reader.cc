#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "checkpoint/manifest.h"
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
      StoredBoxes& held = held_[shard.tensor];
      held.pieces.push_back({shard.box, file, receipt.offsets[i]});
      held.digests.push_back(receipt.digests[i]);
    }
    receipts_.push_back(EntryOf(plan, rank, receipt));
  };
  const std::unique_ptr<Place> place = Place::At(folder);
  const std::vector<int64_t> missing =
      MissingRanks(*place, plan, plan_sha256, AllRanks(plan.graph.mesh), add);
  if (missing.empty()) return;
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` is unfinished: rank {} is missing", folder, missing.front()),
              fmt::format("see `shardinit status {}`", folder));
}

}  // namespace shardinit
