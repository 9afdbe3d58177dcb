#include "checkpoint/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "base/shared_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/receipt.h"
#include "checkpoint/verify.h"
#include "place/place.h"
#include "plan/plan.h"
#include "spec/names.h"

namespace shardinit {
namespace {

// Throws Error (kUsage) if a tensor's type or name is not allowed in a checkpoint, or its name is
// also a module in that of another tensor: HDF5 files would need a group in the place of the
// tensor.
void RequireModules(const Plan& plan) {
  std::set<std::string_view> paths;
  for (const Tensor& tensor : plan.graph.tensors) {
    paths.insert(tensor.path());
    if (InfoOf(tensor.dtype()).kind != DTypeKind::kCarried) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is {}, which no checkpoint has", tensor.path(),
                            InfoOf(tensor.dtype()).name),
                "`shardinit convert` writes other formats with `--to`, and leaves one out with "
                "`--drop`");
  }
  for (const std::string_view path : paths) {
    if (!IsPath(path)) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` cannot be a name in a checkpoint: names use letters, digits, "
                              "`_` and `-`, with dots between parts",
                              path),
                  "`shardinit convert` writes other formats with `--to`, and leaves one out with "
                  "`--drop`");
    }
    for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      if (!paths.contains(path.substr(0, dot))) continue;
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` is a tensor, so a checkpoint cannot have `{}` inside it",
                              path.substr(0, dot), path),
                  "`shardinit convert` writes other formats with `--to`, and leaves one out with "
                  "`--drop`");
    }
  }
}

// Makes the copy of one request, unless it already exists.
class Resharding {
 public:
  Resharding(const Plan& to, const ReshardRequest& request, WorkCounters* counters)
      : request_(request),
        to_(to),
        plan_sha256_(Sha256Of(WritePlan(to_))),
        copy_(*request.copy),
        key_(Sha256Of(ToHex(copy_.identity()) + ToHex(plan_sha256_))),
        counters_(counters) {}

  GenerateResult Run() {
    if (!Place::TraitsAt(request_.folder).removes) return RunInBucket();
    if (HoldsCopy()) return SkipAll();
    was_free_ = true;
    // A run of all ranks, perhaps with other values, may give the folder its name meanwhile.
    try {
      const GenerateResult result = request_.ranks ? RunRanks() : RunStaged();
      if (result.complete || !HoldsCopy()) return result;
    } catch (const Error& e) {
      if (!MayBeLate(e) || !HoldsCopy()) throw;
    }
    return SkipAll();
  }

 private:
  // Returns whether the error may mean that another process has finished the folder.
  static bool MayBeLate(const Error& e) {
    return e.code() == ExitCode::kWorld || e.code() == ExitCode::kConflict;
  }
  std::string Claim() const { return fmt::format("{}\n{}", ToHex(plan_sha256_), request_.claim); }

  // Makes ranks in a bucket, and makes existing ranks again to compare them.
  GenerateResult RunInBucket() {
    const std::vector<int64_t> ranks = request_.ranks ? *request_.ranks : AllRanks(to_.graph.mesh);
    const auto bucket = CheckpointWriter::At(request_.folder);
    if (bucket->IsClaimed(WritePlan(to_))) {
      const std::vector<int64_t> missing = MissingRanks(bucket->place(), to_, plan_sha256_, ranks);
      std::vector<int64_t> there;
      std::set_difference(ranks.begin(), ranks.end(), missing.begin(), missing.end(),
                          std::back_inserter(there));
      CompareRanks(bucket->place(), there, [&](int64_t) { throw Conflict("has other values"); });
    }
    try {
      return Fill(request_.folder, ranks, {});
    } catch (const Interrupted&) {
      request_.warn("interrupted; finished ranks are kept, and the same command writes the rest");
      throw;
    }
  }

  // Removes what killed or late runs left.
  GenerateResult SkipAll() {
    StagedFolder::RemoveLeftOvers(request_.folder, key_);
    if (request_.ranks) SharedFolder::RemoveLeftOvers(request_.folder, Claim());
    return {.skipped = to_.world_size(), .complete = true};
  }

  // Makes all ranks in a folder that gets its name when they are complete.
  GenerateResult RunStaged() {
    StagedFolder staged(request_.folder, key_,
                        [&](const std::string& folder) { return MayGoOn(folder); });
    try {
      const GenerateResult result = Fill(staged.staged(), AllRanks(to_.graph.mesh),
                                         staged.is_old() ? FindOthers(staged.staged()) : Damage());
      staged.Commit();
      return result;
    } catch (const Error& e) {
      if (e.code() == ExitCode::kDifferent || e.code() == ExitCode::kConflict) staged.Remove();
      throw;
    } catch (const Interrupted&) {
      request_.warn(fmt::format(
          "interrupted; finished ranks are kept in `{}`, and the same command writes the rest",
          staged.staged()));
      throw;
    }
  }

  // Makes some ranks. The process that makes the last one gives the folder its name.
  GenerateResult RunRanks() {
    SharedFolder shared(request_.folder, Claim());
    try {
      GenerateResult result = Fill(shared.files(), *request_.ranks, {});
      // If another process made the last rank, the folder has its name.
      result.complete = (result.complete && shared.Commit()) || shared.IsTaken();
      return result;
    } catch (const Error& e) {
      if (!MayBeLate(e) || !shared.IsTaken()) throw;
      return {.skipped = std::ssize(*request_.ranks), .complete = true};
    }
  }

  GenerateResult Fill(const std::string& folder, const std::vector<int64_t>& ranks, Damage damage) {
    GenerateRequest request;
    request.folder = folder;
    request.ranks = ranks;
    request.workers = request_.workers;
    request.index = request_.index;
    request.source = &copy_;
    request.is_shared = request_.ranks.has_value();
    if (!Place::TraitsAt(folder).removes) {
      request.claim = ToHex(Sha256Of(ToHex(copy_.folder().IdentifyAnywhere()) + Claim()));
    }
    request.damage = std::move(damage);
    Progress progress(request_.progress, "copying", BytesIn(to_, request.ranks), request_.is_quiet);
    request.progress = [&](const WorkCounters& c, int64_t done, int64_t ranks) {
      progress.Update(c.written_bytes, ranks > 1 ? fmt::format("rank {} of {}", done, ranks) : "");
    };
    return Generate(to_, request, counters_);
  }

  Error Conflict(std::string_view what) const {
    return {ExitCode::kConflict, fmt::format("`{}` exists and {}", request_.folder, what),
            "choose another folder with `-o`"};
  }

  // On a shared file system, a copy that another machine made since this process began may appear
  // here in parts. So a missing part is not a conflict then. If it stays missing, the next run
  // reports a conflict.
  void RequireAllSeen(std::string_view what) const {
    if (!was_free_) return;
    throw Error(ExitCode::kWorld,
                fmt::format("another process has made `{}`, and it {}", request_.folder, what),
                "run the same command again");
  }

  // Makes the boxes of these ranks again, without writing. Calls `differs` with each rank whose
  // receipt is missing or has other digests.
  void CompareRanks(const Place& place, const std::vector<int64_t>& ranks,
                    const std::function<void(int64_t rank)>& differs) {
    Progress progress(request_.progress, "comparing", BytesIn(to_, ranks), request_.is_quiet);
    WorkerOptions workers = request_.workers;
    workers.writers = 0;
    FileGroups files(workers, counters_, &copy_, 2,
                     [&](int64_t) { progress.Update(counters_->hashed_bytes); });
    for (const int64_t r : ranks) {
      ThrowIfInterrupted();
      const RankPlan rank = PlanRank(to_, r);
      const auto receipt = FindReceipt(place, rank, plan_sha256_);
      if (!receipt) {
        differs(r);
        continue;
      }
      files.WaitForRoom();
      const auto digests = std::make_shared<std::vector<Digest>>(rank.shards.size());
      std::vector<BoxTask> tasks;
      for (size_t s = 0; s < rank.shards.size(); ++s) {
        const Shard& shard = rank.shards[s];
        tasks.push_back({shard.tensor, shard.box, {}, &(*digests)[s]});
      }
      files.Add(std::move(tasks), [r, digests, &differs, wanted = receipt->digests] {
        if (*digests != wanted) differs(r);
      });
    }
    files.Finish();
  }

  // Throws Error (kConflict) if a byte of the existing checkpoint does not match its manifest.
  void RequireUndamaged() const {
    Progress progress(request_.progress, "checking", BytesInFiles(to_), request_.is_quiet);
    const VerifyResult result = Verify(*Place::At(request_.folder), request_.workers.jobs,
                                       [&](int64_t bytes, int64_t) { progress.Update(bytes); });
    if (result.findings.empty()) return;
    const Finding& first = *result.findings.begin();
    RequireAllSeen(fmt::format("does not seem complete yet: {}: {}", first.file, first.message));
    throw Error(
        ExitCode::kConflict,
        fmt::format("`{}` exists and is damaged: {}: {}{}", request_.folder, first.file,
                    first.tensor.empty() ? "" : fmt::format("`{}` ", first.tensor), first.message),
        fmt::format("`shardinit verify {}` shows all damage; or choose another folder with `-o`",
                    request_.folder));
  }

  // Returns whether the folder holds exactly this copy, undamaged. Reads all of it and makes the
  // copy again to compare, without writing. Throws Error (kConflict) if it holds something else.
  bool HoldsCopy() {
    if (!Exists(request_.folder) || IsEmptyFolder(request_.folder)) return false;
    std::string present;
    const bool has_plan =
        ReadIfFile(request_.folder + "/" + kPlanName, kPlanLimit, &present).empty();
    if (has_plan && present != WritePlan(to_)) throw Conflict("holds something else");
    if (!has_plan || !Exists(request_.folder + "/" + kManifestName)) {
      RequireAllSeen("has no plan or no manifest yet");
      throw Conflict("holds something else");
    }
    const CheckpointFolder folder(request_.folder);
    if (ReadDevices(folder.place()) != WriteDeviceLayout(to_.graph.mesh)) {
      throw Conflict("has other slices or devices");
    }
    RequireUndamaged();
    CompareRanks(folder.place(), AllRanks(to_.graph.mesh),
                 [&](int64_t) { throw Conflict("has other values"); });
    MakeFolder(request_.folder);  // syncs its name, in case a killed run did not
    return true;
  }

  // Returns whether to resume from `staged`, which an interrupted run left: only if it is a part of
  // this copy and contains nothing else.
  bool MayGoOn(const std::string& staged) const {
    try {
      const CheckpointFolder folder(staged);
      folder.IsClaimed(WritePlan(to_));
      const std::string foreign = folder.FirstForeign(to_.world_size());
      if (foreign.empty()) return true;
      request_.warn(
          fmt::format("`{}` is not part of this copy: the files next to it are left alone, and "
                      "everything is copied again",
                      foreign));
    } catch (const Error& e) {
      request_.warn(fmt::format("{}: it is left alone, and everything is copied again", e.what()));
    }
    return false;
  }

  // Returns the ranks to make again: their files differ from their receipts or from the copy.
  Damage FindOthers(const std::string& staged) {
    const CheckpointFolder folder(staged);
    std::vector<int64_t> kept;
    const Place& place = folder.place();
    for (const int64_t rank : AllRanks(to_.graph.mesh)) {
      if (place.Exists(ReceiptFile(rank))) kept.push_back(rank);
    }
    Damage damage = FindDamage(place, to_, plan_sha256_, kept, request_.workers.jobs, nullptr);
    std::vector<int64_t> whole;
    std::set_difference(kept.begin(), kept.end(), damage.ranks.begin(), damage.ranks.end(),
                        std::back_inserter(whole));
    std::mutex mutex;
    CompareRanks(place, whole, [&](int64_t rank) {
      const std::lock_guard lock(mutex);
      damage.ranks.push_back(rank);
    });
    std::sort(damage.ranks.begin(), damage.ranks.end());
    return damage;
  }

  const ReshardRequest& request_;
  const Plan& to_;
  const Digest plan_sha256_;
  FolderCopy& copy_;
  const Digest key_;  // of the staged folder
  WorkCounters* const counters_;
  bool was_free_ = false;  // nothing was at the path of the copy at the start
};

}  // namespace

GenerateResult Reshard(const Plan& plan, const ReshardRequest& request, WorkCounters* counters) {
  RequireModules(plan);
  return Resharding(plan, request, counters).Run();
}

}  // namespace shardinit
