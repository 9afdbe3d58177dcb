#include "checkpoint/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "checkpoint/bucket.h"
#include "formats/hdf5/writer.h"
#include "plan/plan.h"
#include "plan/read.h"

namespace shardinit {
namespace {

// The number of ranks that are open at once: the metadata of the next one is made, and the data of
// the last one is synced, while the one between is written.
constexpr int64_t kRanksAtOnce = 8;

// Writes each rank: its metadata here, its values by the workers, then its commit on one of their
// threads. A rank that is dropped on the way leaves nothing behind.
void WriteRanks(const Plan& plan, const GenerateRequest& request, const CheckpointFolder& folder,
                const Digest& plan_sha256, WorkCounters* counters, GenerateResult* result) {
  const auto tick = [&](int64_t done) {
    if (!request.progress) return;
    request.progress(*counters, result->skipped + done, static_cast<int64_t>(request.ranks.size()));
  };
  FileGroups files(request.workers, counters, request.source, kRanksAtOnce, tick);
  for (const int64_t r : request.ranks) {
    ThrowIfInterrupted();
    RankPlan rank = PlanRank(plan, r);
    if (!std::binary_search(request.damage.ranks.begin(), request.damage.ranks.end(), r) &&
        FindReceipt(folder.place(), rank, plan_sha256)) {
      ++result->skipped;
      continue;
    }
    files.WaitForRoom();
    result->bytes += rank.bytes();
    const auto writer =
        std::make_shared<RankWriter>(folder, plan, std::move(rank), plan_sha256, counters);
    files.Add(writer->Tasks(), [writer] { writer->Commit(); });
    ++result->written;
  }
  files.Finish();
}

// The written files are where the folder is now, which may not be where the user asked for it.
void RequireInPlace(const Folder& folder) {
  if (folder.IsInPlace()) return;
  throw Error(ExitCode::kWorld,
              fmt::format("`{}` was moved or removed while it was written", folder.path()),
              "leave it in place, and run the same command again");
}

}  // namespace

GenerateResult WhatIsLeft(const Plan& plan, const std::string& folder,
                          const std::vector<int64_t>& ranks) {
  if (IsBucketUrl(folder)) return WhatIsLeftInBucket(plan, folder, ranks);
  const std::string plan_json = WritePlan(plan);
  const CheckpointFolder checkpoint(folder);
  std::vector<int64_t> left = ranks;
  if (checkpoint.IsClaimed(plan_json)) {
    left = MissingRanks(checkpoint.place(), plan, Sha256Of(plan_json), ranks);
  }
  return {.written = std::ssize(left),
          .skipped = std::ssize(ranks) - std::ssize(left),
          .bytes = BytesIn(plan, left)};
}

Damage FindRepairs(const Plan& plan, const std::string& folder, const std::vector<int64_t>& ranks,
                   int jobs, const VerifyProgress& progress) {
  const std::string plan_json = WritePlan(plan), path = folder + "/" + kPlanName;
  const Digest plan_sha256 = Sha256Of(plan_json);
  std::string present, manifest;
  const bool has_plan = ReadIfFile(path, kPlanLimit, &present).empty();
  RequireKnownVersion(present, path);
  if (!has_plan || present != plan_json) {
    if (ReadIfFile(folder + "/" + kManifestName, kManifestLimit, &manifest).empty() &&
        IsManifestFor(manifest, plan_json)) {
      const Folder root = Folder::Open(folder);
      NewFile file(root, kPlanName);
      file.Append(plan_json);
      file.Commit();
    }
  }
  const CheckpointFolder checkpoint(folder);
  if (!checkpoint.IsClaimed(plan_json)) return {};
  return FindDamage(checkpoint.place(), plan, plan_sha256, ranks, jobs, progress);
}

GenerateResult Generate(const Plan& plan, const GenerateRequest& request, WorkCounters* counters) {
  if (IsBucketUrl(request.folder)) return GenerateInBucket(plan, request, counters);
  GenerateResult result;
  std::string plan_json = WritePlan(plan);
  const Digest plan_sha256 = Sha256Of(plan_json);
  const SignalsWait signals;  // The caller says what becomes of the ranks that are done.
  const CheckpointFolder folder(request.folder, std::exchange(plan_json, {}), !request.is_shared);
  const std::string devices_json = WriteDeviceLayout(plan.graph.mesh);
  folder.WriteDevices(devices_json);
  RemoveManifestOfOthers(folder, plan.graph.mesh);
  folder.RemoveLeftOvers(Others::kOld);

  // WriteRanks() releases its blocks before files that describe other files take memory.
  WriteRanks(plan, request, folder, plan_sha256, counters, &result);
  // This brings the names of receipts to the disk, those of a killed run, too.
  folder.ranks().Sync();

  // From here on, only files that describe other files are written.
  const auto return_in_place = [&] {
    RequireInPlace(folder.root());
    folder.RequireDevices(devices_json);
    return result;
  };
  const bool all = static_cast<int64_t>(request.ranks.size()) == plan.world_size();
  const int64_t near = request.ranks.empty() ? 0 : request.ranks.back();
  if (!all && LacksRank(folder.place(), plan.world_size(), near)) return return_in_place();
  if (result.written == 0 && !request.damage.completion &&
      IsFinalized(folder.place(), WantsIndex(plan, request.index))) {
    // The manifest vouches for the receipts of the other ranks, which are there. If each of many
    // processes read them, that would be quadratic.
    result.complete = true;
    folder.RemoveLeftOvers(Others::kAll);
    return return_in_place();
  }
  const auto start = std::chrono::steady_clock::now();
  const FinalizeResult finalized = Finalize(folder, plan, plan_sha256, request.index);
  result.complete = finalized.missing.empty();
  counters->finalize_ns += (std::chrono::steady_clock::now() - start).count();
  if (all && !result.complete) {
    throw Error(ExitCode::kWorld,
                fmt::format("`{}` is unfinished: {} of {} ranks were complete and are gone",
                            request.folder, finalized.missing.size(), plan.world_size()),
                "stop what removes or damages files there, and run the same command again");
  }
  return return_in_place();
}

RankWriter::RankWriter(const CheckpointFolder& folder, const Plan& plan, RankPlan rank,
                       const Digest& plan_sha256, WorkCounters* counters)
    : folder_(folder),
      plan_(plan),
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
  layout_.texts = {};  // They are on their way to the disk.
  receipt_.metadata_sha256 = HashMetadata(file_.fd(), receipt_.size, rank_, receipt_.offsets);
  hdf5::GiveBackMemory(rank_.shards.size());
}

std::vector<BoxTask> RankWriter::Tasks() { return TasksOf(layout_, &file_, &receipt_.digests); }

// A rank costs the disk at least this, whatever the number of ranks:
// - the file's data is synced, then the file gets its name: whatever has that name is whole;
// - the folder is synced, so that no receipt is ever there without the file that it vouches for;
// - the receipt's data is synced, then it gets its name, in the same way.
// The receipts' names need no order, so Generate() syncs the folder once for all of them. If the
// power fails before, their ranks are made again.
void RankWriter::Commit() {
  const Timer timer(&counters_.sync_ns);
  const auto require_plan = [&] { folder_.RequirePlan(receipt_.plan_sha256); };
  file_.Commit(require_plan);
  receipt_.sources = SourcesRead(plan_, rank_);
  NewFile receipt(folder_.ranks(), NameOf(ReceiptFile(rank_.rank)));
  WriteReceipt(rank_, receipt_, [&](std::string_view text) { receipt.Append(text); });
  receipt.CommitUnsynced(require_plan);
}

}  // namespace shardinit
