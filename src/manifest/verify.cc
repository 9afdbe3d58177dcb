#include "manifest/verify.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "manifest/manifest.h"

namespace shardinit {
namespace {

class Verifier {
 public:
  Verifier(const std::string& folder, int jobs,
           const std::function<void(int64_t, int64_t)>& progress)
      : folder_(folder), jobs_(jobs), progress_(progress) {}

  VerifyResult Run() {
    std::string manifest;
    if (!ReadFileIfExists(folder_ + "/" + kManifestName, kManifestLimit, &manifest)) {
      RequireFolder(folder_);
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` is not a checkpoint: it has no {}", folder_, kManifestName),
                  Exists(folder_ + "/" + kPlanName)
                      ? fmt::format("it is unfinished: see `shardinit status {}`", folder_)
                      : "name a folder that `shardinit gen` or `shardinit export` wrote");
    }
    if (!Exists(folder_ + "/" + kPlanName)) {
      Find(kPlanName, "", "is missing, so nothing else can be checked");
      return std::move(result_);
    }
    try {
      plan_ = LoadCheckpointPlan(folder_, &plan_sha256_);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kRefused) throw;
      Find(kPlanName, "", fmt::format("is damaged, so nothing else can be checked: {}", e.what()));
      return std::move(result_);
    }
    total_ = plan_.bytes;
    std::vector<ReceiptEntry> entries(static_cast<size_t>(plan_.world_size()));
    for (int64_t rank = 0; rank < plan_.world_size(); ++rank) {
      ThrowIfInterrupted();
      VerifyRank(PlanRank(plan_, rank), &entries[static_cast<size_t>(rank)]);
    }
    // The manifest follows from what was read, so one comparison covers all of it.
    if (result_.findings.empty()) VerifyManifest(manifest, entries);
    std::stable_sort(result_.findings.begin(), result_.findings.end(),
                     [](const Finding& a, const Finding& b) {
                       return std::tie(a.file, a.tensor) < std::tie(b.file, b.tensor);
                     });
    return std::move(result_);
  }

 private:
  void Find(std::string file, std::string tensor, std::string message) {
    const std::lock_guard lock(mutex_);
    result_.findings.push_back({std::move(file), std::move(tensor), std::move(message)});
  }

  void VerifyRank(const RankPlan& rank, ReceiptEntry* entry) {
    const std::string receipt_file = ReceiptFile(rank.rank), file = RankFile(rank.rank);
    Receipt receipt;
    try {
      std::string text;
      if (!ReadFileIfExists(folder_ + "/" + receipt_file, ReceiptLimit(rank.shards.size()),
                            &text)) {
        Find(receipt_file, "", "is missing");
        return;
      }
      receipt = ReadReceipt(text, receipt_file, rank);
      if (WriteReceipt(rank, receipt) != text) {
        Find(receipt_file, "", "is damaged: it is not what this tool wrote");
        return;
      }
    } catch (const Error& e) {
      if (e.code() == ExitCode::kWorld) throw;
      Find(receipt_file, "", fmt::format("is damaged: {}", e.what()));
      return;
    }
    if (receipt.plan_sha256 != plan_sha256_) {
      Find(receipt_file, "", "belongs to another plan");
      return;
    }
    *entry = EntryOf(plan_, rank, receipt);
    VerifyRankFile(rank, receipt, file);
    ++result_.files;
  }

  void VerifyRankFile(const RankPlan& rank, const Receipt& receipt, const std::string& file) {
    const Fd fd(open((folder_ + "/" + file).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd && errno == ENOENT) {
      Find(file, "", "is missing");
      return;
    }
    if (!fd) throw SystemError("read", folder_ + "/" + file);
    const int64_t size = FileSize(folder_ + "/" + file);
    if (size != receipt.size) {
      Find(file, "", fmt::format("has {} bytes, but its receipt says {}", size, receipt.size));
      return;
    }
    if (HashMetadata(fd.get(), size, rank, receipt.offsets) != receipt.metadata_sha256) {
      Find(file, "", "has damaged metadata: its HDF5 structure is not what was written");
    }
    const auto progress = [&](int64_t bytes) {
      hashed_ += bytes;
      if (progress_) progress_(hashed_, total_);
    };
    ParallelFor(static_cast<int64_t>(rank.shards.size()), jobs_, [&](int64_t i) {
      const Shard& shard = rank.shards[static_cast<size_t>(i)];
      const int64_t offset = receipt.offsets[static_cast<size_t>(i)];
      if (HashRange(fd.get(), folder_ + "/" + file, offset, shard.bytes(), progress) ==
          receipt.digests[static_cast<size_t>(i)]) {
        return;
      }
      Find(file, shard.tensor->path,
           fmt::format("has other data than was written (rank {}, bytes {} to {} of the file)",
                       rank.rank, offset, offset + shard.bytes() - 1));
    });
    result_.boxes += static_cast<int64_t>(rank.shards.size());
    result_.bytes += rank.bytes();
  }

  void VerifyManifest(std::string_view manifest, const std::vector<ReceiptEntry>& entries) {
    std::optional<FileEntry> index;
    if (!ClaimedIndex(manifest, &index)) {
      Find(kManifestName, "", "is damaged: it does not say whether there is an index");
      return;
    }
    if (index) VerifyIndex(*index);
    size_t at = 0;
    bool equal = true;
    WriteManifest(plan_, plan_sha256_, entries, index, [&](std::string_view text) {
      equal = equal && manifest.substr(at, text.size()) == text;
      at = std::min(manifest.size(), at + text.size());
    });
    if (!equal || at != manifest.size()) {
      Find(kManifestName, "", "is damaged: it is not what follows from the plan and the receipts");
    }
  }

  void VerifyIndex(const FileEntry& claimed) {
    const std::string path = folder_ + "/" + kIndexName;
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) {
      Find(kIndexName, "", "is missing, but the manifest lists it");
      return;
    }
    const FileEntry found = HashFile(fd.get(), path);
    if (found.size != claimed.size || found.sha256 != claimed.sha256) {
      Find(kIndexName, "", "is damaged: its digest is not the one in the manifest");
    }
  }

  const std::string folder_;
  const int jobs_;
  const std::function<void(int64_t, int64_t)>& progress_;
  Plan plan_;
  Digest plan_sha256_{};
  std::mutex mutex_;
  std::atomic<int64_t> hashed_{0};
  int64_t total_ = 0;
  VerifyResult result_;
};

}  // namespace

VerifyResult Verify(const std::string& folder, int jobs,
                    const std::function<void(int64_t, int64_t)>& progress) {
  return Verifier(folder, jobs, progress).Run();
}

}  // namespace shardinit
