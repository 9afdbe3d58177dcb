#include "manifest/rank_writer.h"

#include <sys/stat.h>

#include <chrono>

#include "base/error.h"
#include "formats/hdf5/writer.h"

namespace shardinit {

RankWriter::RankWriter(const CheckpointFolder& folder, const Plan& plan, RankPlan rank,
                       const Digest& plan_sha256, WorkCounters* counters)
    : folder_(folder), rank_(std::move(rank)), counters_(*counters) {
  const auto start = std::chrono::steady_clock::now();
  receipt_.plan_sha256 = plan_sha256;
  file_ = BeginFile(folder.ranks(), NameOf(RankFile(rank_.rank)), [&](const NewFile& file) {
    receipt_.offsets = hdf5::WriteRankMetadata(file.fd(), file.path(), plan, rank_, plan_sha256);
  });
  receipt_.digests.resize(rank_.shards.size());
  struct stat info;
  if (fstat(file_->fd(), &info) != 0) throw SystemError("read", file_->path());
  receipt_.size = info.st_size;
  receipt_.metadata_sha256 = HashMetadata(file_->fd(), receipt_.size, rank_, receipt_.offsets);
  AllocateSpace(file_->fd(), receipt_.size, file_->path());
  direct_ = ReopenDirect(file_->fd());
  counters_.metadata_ns += (std::chrono::steady_clock::now() - start).count();
}

std::vector<BoxTask> RankWriter::Tasks() {
  std::vector<BoxTask> tasks;
  for (size_t i = 0; i < rank_.shards.size(); ++i) {
    tasks.push_back({rank_.shards[i].tensor,
                     rank_.shards[i].box,
                     {file_->fd(), direct_.get(), receipt_.offsets[i], &file_->path()},
                     &receipt_.digests[i]});
  }
  return tasks;
}

void RankWriter::Commit() {
  const auto start = std::chrono::steady_clock::now();
  const auto require_plan = [&] { folder_.RequirePlan(receipt_.plan_sha256); };
  file_->Commit(require_plan);
  NewFile receipt(folder_.ranks(), NameOf(ReceiptFile(rank_.rank)));
  receipt.Append(WriteReceipt(rank_, receipt_));
  receipt.Commit(require_plan);
  counters_.sync_ns += (std::chrono::steady_clock::now() - start).count();
}

}  // namespace shardinit
