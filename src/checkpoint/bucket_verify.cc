#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "checkpoint/bucket.h"
#include "checkpoint/signature.h"

namespace shardinit {
namespace {

class BucketVerifier {
 public:
  BucketVerifier(BucketCheckpoint* bucket, const Plan& plan, const Digest& plan_sha256,
                 const VerifyProgress& progress)
      : bucket_(*bucket),
        plan_(plan),
        plan_sha256_(plan_sha256),
        total_(BytesInFiles(plan)),
        progress_(progress) {}

  // Returns the ranks that have a receipt, ascending. A name that does not belong is a finding, or
  // foreign.
  std::vector<int64_t> List() {
    std::vector<int64_t> ranks;
    bucket_.store().List("", [&](const std::string& name, const ObjectInfo&) {
      const bool inner = name.starts_with("ranks/");
      const std::string_view file = std::string_view(name).substr(inner ? 6 : 0);
      const int64_t rank = inner ? RankOf(file, ".json") : -1;
      if (rank >= 0 && rank < plan_.world_size()) {
        ranks.push_back(rank);
      } else if (inner ? !IsInRanks(file, plan_.world_size())
                       : !IsInRoot(file) && file != SignatureOf(kManifestName)) {
        (IsLikeAPart(file, inner) ? result.findings : result.foreign)
            .Add({name, "", "does not belong to the checkpoint"});
      }
      return true;
    });
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  // Returns the parts of the receipt that the manifest has, if it is valid. Adds a finding unless
  // the rank's file is what the receipt says.
  std::optional<std::pair<ReceiptEntry, Receipt>> VerifyRank(const RankPlan& rank) {
    const std::string name = ReceiptFile(rank.rank);
    const std::optional<std::string> text =
        bucket_.store().Get(name, ReceiptLimit(rank.shards.size()));
    if (!text) {
      Find(name, "", "is missing");
      return {};
    }
    std::optional<Receipt> receipt = OwnReceipt(*text, name, rank, plan_sha256_);
    if (!receipt) {
      Find(name, "", "is damaged, or belongs to another plan");
      return {};
    }
    VerifyFile(rank, *receipt);
    return std::pair(EntryOf(plan_, rank, *receipt), std::move(*receipt));
  }

  void VerifyManifest(std::string_view manifest, const std::vector<ReceiptEntry>& entries) {
    std::optional<FileEntry> index;
    if (!ClaimedIndex(manifest, &index)) {
      Find(kManifestName, "", "is damaged: it does not say whether there is an index");
      return;
    }
    if (index) {
      const std::optional<ObjectInfo> there = bucket_.store().Head(kIndexName);
      if (!there) {
        Find(kIndexName, "", "is missing, but the manifest lists it");
      } else if (there->size != index->size ||
                 bucket_.HashObject(kIndexName, *there) != index->sha256) {
        Find(kIndexName, "", "is damaged: its digest is not the one in the manifest");
      }
    }
    if (!IsManifestOf(manifest, plan_, plan_sha256_, entries, index)) {
      Find(kManifestName, "",
           fmt::format("is damaged: it does not match {}", WhatManifestFollows(manifest, plan_)));
    }
  }

  void Find(std::string file, std::string tensor, std::string message) {
    const std::lock_guard lock(mutex_);
    result.findings.Add({std::move(file), std::move(tensor), std::move(message)});
  }

  VerifyResult result;

 private:
  static bool IsLikeAPart(std::string_view file, bool inner) {
    return inner &&
           (file.ends_with(".h5") || (file.starts_with("rank-") && file.ends_with(".json")));
  }

  void VerifyFile(const RankPlan& rank, const Receipt& receipt) {
    const std::string name = RankFile(rank.rank);
    const std::optional<ObjectInfo> info = bucket_.store().Head(name);
    if (!info) return Find(name, "", "is missing");
    if (info->size != receipt.size) {
      return Find(name, "",
                  fmt::format("has {} bytes, but its receipt says {}", info->size, receipt.size));
    }
    bucket_.CompareRank(
        rank, receipt, *info,
        [&](size_t i) {
          const Shard& shard = rank.shards[i];
          Find(name, std::string(shard.tensor->path()),
               fmt::format("has other data than was written (rank {}, bytes {} to {} of the file)",
                           rank.rank, receipt.offsets[i], receipt.offsets[i] + shard.bytes() - 1));
        },
        [&] { Find(name, "", "has damaged metadata: its HDF5 structure is not what was written"); },
        [&](int64_t bytes) {
          read_ += bytes;
          if (progress_) progress_(std::min<int64_t>(read_, total_), total_);
        });
    const std::lock_guard lock(mutex_);
    result.boxes += std::ssize(rank.shards);
    result.bytes += rank.bytes();
  }

  BucketCheckpoint& bucket_;
  const Plan& plan_;
  const Digest plan_sha256_;
  const int64_t total_;
  const VerifyProgress& progress_;
  std::atomic<int64_t> read_{0};
  std::mutex mutex_;
};

}  // namespace

VerifyResult VerifyBucket(const std::string& url, int jobs, const VerifyProgress& progress) {
  BucketCheckpoint bucket(url);
  const std::optional<std::string> manifest = bucket.store().Get(kManifestName, kManifestLimit);
  if (!manifest) {
    const bool is_unfinished = bucket.store().Head(kPlanName).has_value();
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint: it has no {}", url, kManifestName),
                is_unfinished ? fmt::format("it is unfinished: see `shardinit status {}`", url)
                              : "name a folder that `shardinit gen` wrote");
  }
  const auto one_finding = [](std::string file, std::string message) {
    VerifyResult result;
    result.findings.Add({std::move(file), "", std::move(message)});
    return result;
  };
  const std::optional<std::string> plan_json = bucket.store().Get(kPlanName, kPlanLimit);
  if (!plan_json) return one_finding(kPlanName, "is missing, so nothing else can be checked");
  const Digest plan_sha256 = Sha256Of(*plan_json);
  Plan plan;
  std::string bad_devices;
  try {
    plan = ReadPlan(*plan_json, bucket.UrlOf(kPlanName));
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    return one_finding(kPlanName,
                       fmt::format("is damaged, so nothing else can be checked: {}", e.what()));
  }
  try {
    bucket.LoadDevices(&plan);
    if (plan.graph.mesh.devices.IsPlain() && ListsDevices(*manifest)) {
      bad_devices = "is missing, but the manifest lists devices";
    }
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    bad_devices = fmt::format("is damaged: {}", e.what());
  }
  BucketVerifier verifier(&bucket, plan, plan_sha256, progress);
  const std::vector<int64_t> present = verifier.List();
  FindMissingRanges(present, plan.world_size(), [&](std::string file, std::string message) {
    verifier.Find(std::move(file), "", std::move(message));
  });
  // Ranks are read side by side, and compared with one another in their order.
  bool receipts = std::ssize(present) == plan.world_size();
  std::vector<ReceiptEntry> entries;
  SourceDigests sources;
  const int64_t at_once = std::max(jobs, 4);
  for (int64_t begin = 0; begin < std::ssize(present); begin += at_once) {
    ThrowIfInterrupted();
    const int64_t count = std::min(at_once, std::ssize(present) - begin);
    std::vector<std::optional<std::pair<ReceiptEntry, Receipt>>> found(static_cast<size_t>(count));
    ParallelFor(count, static_cast<int>(at_once), [&](int64_t i) {
      found[static_cast<size_t>(i)] =
          verifier.VerifyRank(PlanRank(plan, present[static_cast<size_t>(begin + i)]));
    });
    for (int64_t i = 0; i < count; ++i) {
      auto& one = found[static_cast<size_t>(i)];
      receipts = one.has_value() && receipts;
      if (!one) continue;
      const RankPlan rank = PlanRank(plan, present[static_cast<size_t>(begin + i)]);
      if (std::string difference = sources.Add(plan, rank, one->second); !difference.empty()) {
        verifier.Find(ReceiptFile(rank.rank), "", std::move(difference));
      }
      ++verifier.result.files;
      if (receipts) entries.push_back(std::move(one->first));
    }
  }
  if (!bad_devices.empty()) {
    verifier.Find(kDevicesName, "", bad_devices);
  } else if (receipts) {
    verifier.VerifyManifest(*manifest, entries);
  }
  verifier.result.statement = *manifest;
  return std::move(verifier.result);
}

}  // namespace shardinit
