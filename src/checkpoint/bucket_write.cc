#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "checkpoint/bucket.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/object.h"
#include "formats/hdf5/writer.h"

namespace shardinit {
namespace {

// Parts under way at once: one connection is slower than a network.
constexpr int kUploads = 8;
// Ranks that are open at once, as in WriteRanks().
constexpr int64_t kObjectsAtOnce = 8;
// How often a rank is made whose upload others end.
constexpr int kRounds = 5;

// A rank on its way into the bucket.
class RankObject {
 public:
  // A copy has values that do not follow from the plan.
  RankObject(BucketCheckpoint* bucket, const Plan& plan, RankPlan rank, const Digest& plan_sha256,
             bool is_copy, bool may_be_there, WorkCounters* counters)
      : bucket_(*bucket),
        plan_(plan),
        rank_(std::move(rank)),
        is_copy_(is_copy),
        counters_(*counters),
        layout_([&] {
          const Timer timer(&counters_.metadata_ns);
          return hdf5::LayOutRank(plan, rank_, plan_sha256);
        }()) {
    const Timer timer(&counters_.metadata_ns);
    receipt_.plan_sha256 = plan_sha256;
    receipt_.size = layout_.size();
    for (const FileBox& box : layout_.boxes) receipt_.offsets.push_back(box.offset);
    Sha256 metadata;
    ForEachGap(layout_, [&](std::string_view bytes) { metadata.Update(bytes); });
    receipt_.metadata_sha256 = metadata.Finish();
    if (may_be_there && bucket_.HasRankFile(rank_.rank, receipt_.size, plan_sha256)) {
      return;
    }
    object_ = std::make_unique<Object>(&bucket_.store(), RankFile(rank_.rank), layout_,
                                       Metadata{{"plan-sha256", ToHex(plan_sha256)}});
  }

  // Returns what is to be made; without an object, which is there then, for the digests alone.
  std::vector<BoxTask> Tasks() {
    std::vector<BoxTask> tasks = TasksOf(layout_, object_.get(), &receipt_.digests);
    // A part is whole soonest if its boxes are made one after the other.
    std::sort(tasks.begin(), tasks.end(),
              [](const BoxTask& a, const BoxTask& b) { return a.output.offset < b.output.offset; });
    return tasks;
  }

  // Names the object and writes its receipt. Returns false if the rank must be made again.
  bool Commit() {
    const Timer timer(&counters_.sync_ns);
    const auto require_plan = [&] { bucket_.RequirePlan(receipt_.plan_sha256); };
    const bool is_own = object_ != nullptr && object_->Complete(require_plan);
    if (!is_own && !bucket_.HasRankFile(rank_.rank, receipt_.size, receipt_.plan_sha256)) {
      return false;
    }
    receipt_.sources = SourcesRead(plan_, rank_);
    if (!is_own && (is_copy_ || !receipt_.sources.empty())) RequireSameSources();
    if (!is_own) require_plan();
    bucket_.PutText(ReceiptFile(rank_.rank), WriteReceipt(rank_, receipt_));
    return true;
  }

 private:
  // Another process made the object, perhaps when a source had other bytes.
  void RequireSameSources() {
    const std::string name = RankFile(rank_.rank);
    const Place& place = bucket_.place();
    std::unique_ptr<PlaceFile> file;
    if (place.Open(name, &file).empty() && file->size() == receipt_.size) {
      const FileDigests there = HashRankFile(place, *file, rank_, receipt_, kOneFile);
      if (there.parts == receipt_.digests && there.rest == receipt_.metadata_sha256) return;
    }
    throw Error(
        ExitCode::kConflict,
        fmt::format("`{}` was made of sources that had other elements", bucket_.UrlOf(name)),
        "make all ranks of the same source, in a new folder, and give its `digest` in the "
        "spec");
  }

  BucketCheckpoint& bucket_;
  const Plan& plan_;
  const RankPlan rank_;
  const bool is_copy_;
  WorkCounters& counters_;
  Receipt receipt_;
  const FileLayout layout_;
  std::unique_ptr<Object> object_;
};

// Makes these ranks, whose files are not there if a listing lacked them. Returns those that must be
// made again, ascending.
std::vector<int64_t> MakeRanks(BucketCheckpoint& bucket, const Plan& plan,
                               const Digest& plan_sha256, const std::vector<int64_t>& ranks,
                               const std::optional<ListedSizes>& listed,
                               const WorkerOptions& workers, TaskSource* source,
                               const std::function<void(int64_t done)>& tick,
                               WorkCounters* counters) {
  std::mutex mutex;
  std::vector<int64_t> again;
  FileGroups files(workers, counters, source, kObjectsAtOnce, tick);
  for (const int64_t r : ranks) {
    ThrowIfInterrupted();
    files.WaitForRoom();
    const auto object =
        std::make_shared<RankObject>(&bucket, plan, PlanRank(plan, r), plan_sha256,
                                     source != nullptr, !listed || listed->contains(r), counters);
    files.Add(object->Tasks(), [&, object, r] {
      if (object->Commit()) return;
      const std::lock_guard lock(mutex);
      again.push_back(r);
    });
  }
  files.Finish();
  std::sort(again.begin(), again.end());
  return again;
}

}  // namespace

GenerateResult WhatIsLeftInBucket(const Plan& plan, const std::string& url,
                                  const std::vector<int64_t>& ranks) {
  const std::string plan_json = WritePlan(plan);
  BucketCheckpoint bucket(url);
  std::vector<int64_t> left = ranks;
  if (bucket.IsClaimed(plan_json)) {
    left = MissingRanks(bucket.place(), plan, Sha256Of(plan_json), ranks);
  }
  return {.written = std::ssize(left),
          .skipped = std::ssize(ranks) - std::ssize(left),
          .bytes = BytesIn(plan, left)};
}

GenerateResult GenerateInBucket(const Plan& plan, const GenerateRequest& request,
                                WorkCounters* counters) {
  const std::string plan_json = WritePlan(plan);
  const Digest plan_sha256 = Sha256Of(plan_json);
  const SignalsWait signals;  // The caller says what becomes of the ranks that are done.
  BucketCheckpoint bucket(request.folder);
  bucket.Claim(plan_json, request.claim);
  const std::string devices_json = WriteDeviceLayout(plan.graph.mesh);
  bucket.ClaimDevices(devices_json);

  GenerateResult result;
  std::optional<ListedSizes> listed;
  std::vector<int64_t> left =
      MissingRanks(bucket.place(), plan, plan_sha256, request.ranks, {}, false, &listed);
  result.skipped = std::ssize(request.ranks) - std::ssize(left);
  result.written = std::ssize(left);
  result.bytes = BytesIn(plan, left);
  if (!left.empty()) bucket.RequireConditionalUploads(plan_json, request.claim);
  WorkerOptions workers = request.workers;
  workers.writers = kUploads;
  workers.in_order = true;
  int64_t done_before = result.skipped;
  for (int round = 0; !left.empty(); ++round) {
    if (round == kRounds) {
      throw Error(ExitCode::kWorld,
                  fmt::format("the uploads of {} of {} ranks are ended by others again and again",
                              left.size(), request.ranks.size()),
                  "stop what ends them, and run the same command again");
    }
    const auto tick = [&](int64_t done) {
      if (!request.progress) return;
      request.progress(*counters, done_before + done, std::ssize(request.ranks));
    };
    const int64_t count = std::ssize(left);
    left =
        MakeRanks(bucket, plan, plan_sha256, left, listed, workers, request.source, tick, counters);
    done_before += count - std::ssize(left);
  }

  const bool all = std::ssize(request.ranks) == plan.world_size();
  const int64_t near = request.ranks.empty() ? 0 : request.ranks.back();
  if (!all && LacksRank(bucket.place(), plan.world_size(), near)) {
    bucket.RequireDevices(devices_json);
    return result;
  }
  if (result.written == 0 && IsFinalized(bucket.place(), WantsIndex(plan, request.index))) {
    // The manifest may be older than a loss, but all names are there.
    result.complete = true;
  } else {
    const Timer timer(&counters->finalize_ns);
    const FinalizeResult finalized = bucket.Finalize(plan, plan_sha256, request.index);
    result.complete = finalized.missing.empty();
    if (all && !result.complete) {
      throw Error(ExitCode::kWorld,
                  fmt::format("`{}` is unfinished: {} of {} ranks were complete and are gone",
                              request.folder, finalized.missing.size(), plan.world_size()),
                  "stop what removes or damages files there, and run the same command again");
    }
  }
  bucket.RequireDevices(devices_json);
  return result;
}

}  // namespace shardinit
