#include "manifest/rank_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "base/error.h"
#include "formats/hdf5/writer.h"

namespace shardinit {
RankWriter::RankWriter(const std::string& folder, const Plan& plan, RankPlan rank,
                       const Digest& plan_sha256, WorkCounters* counters)
    : folder_(folder),
      path_(folder + "/" + RankFile(rank.rank)),
      rank_(std::move(rank)),
      counters_(*counters) {
  const auto start = std::chrono::steady_clock::now();
  fd_ = CreateTemporary(path_, &temporary_);
  try {
    receipt_.plan_sha256 = plan_sha256;
    receipt_.offsets = hdf5::WriteRankMetadata(fd_.get(), path_, plan, rank_, plan_sha256);
    receipt_.digests.resize(rank_.shards.size());
    struct stat info;
    if (fstat(fd_.get(), &info) != 0) throw SystemError("read", path_);
    receipt_.size = info.st_size;
    receipt_.metadata_sha256 = HashMetadata(fd_.get(), receipt_.size, rank_, receipt_.offsets);
    AllocateSpace(fd_.get(), receipt_.size, path_);
    direct_ = ReopenDirect(fd_.get());
  } catch (...) {
    unlink(temporary_.c_str());
    throw;
  }
  counters_.metadata_ns += (std::chrono::steady_clock::now() - start).count();
}

RankWriter::~RankWriter() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

std::vector<BoxTask> RankWriter::Tasks() {
  std::vector<BoxTask> tasks;
  for (size_t i = 0; i < rank_.shards.size(); ++i) {
    tasks.push_back({rank_.shards[i].tensor,
                     rank_.shards[i].box,
                     {fd_.get(), direct_.get(), receipt_.offsets[i], &path_},
                     &receipt_.digests[i]});
  }
  return tasks;
}

void RankWriter::Commit() {
  const auto start = std::chrono::steady_clock::now();
  shardinit::Commit(fd_.get(), temporary_, path_);
  temporary_.clear();
  WriteFileAtomically(folder_ + "/" + ReceiptFile(rank_.rank), WriteReceipt(rank_, receipt_));
  counters_.sync_ns += (std::chrono::steady_clock::now() - start).count();
}

}  // namespace shardinit
