#include "checkpoint/rank_writer.h"

#include "formats/hdf5/writer.h"

namespace shardinit {

RankWriter::RankWriter(const CheckpointFolder& folder, const Plan& plan, RankPlan rank,
                       const Digest& plan_sha256, WorkCounters* counters)
    : folder_(folder),
      rank_(std::move(rank)),
      counters_(*counters),
      layout_([&] {
        const Timer timer(&counters_.metadata_ns);
        return hdf5::LayOutRank(plan, rank_, plan_sha256);
      }()),
      file_(folder.ranks(), NameOf(RankFile(rank_.rank))) {
  const Timer timer(&counters_.metadata_ns);
  receipt_.plan_sha256 = plan_sha256;
  receipt_.size = layout_.size();
  for (const FileBox& box : layout_.boxes) receipt_.offsets.push_back(box.offset);
  BeginFile(layout_, file_);
  receipt_.metadata_sha256 = HashMetadata(file_.fd(), receipt_.size, rank_, receipt_.offsets);
}

std::vector<BoxTask> RankWriter::Tasks() { return TasksOf(layout_, file_, &receipt_.digests); }

void RankWriter::Commit() {
  const Timer timer(&counters_.sync_ns);
  const auto require_plan = [&] { folder_.RequirePlan(receipt_.plan_sha256); };
  file_.Commit(require_plan);
  NewFile receipt(folder_.ranks(), NameOf(ReceiptFile(rank_.rank)));
  receipt.Append(WriteReceipt(rank_, receipt_));
  receipt.Commit(require_plan);
}

}  // namespace shardinit
