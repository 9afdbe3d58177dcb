#include "checkpoint/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "formats/hdf5/writer.h"
#include "place/shared_files.h"
#include "plan/plan.h"
#include "plan/read.h"

namespace shardinit {
namespace {

// The number of ranks that are open at once. While one rank is written, the metadata of the next is
// made and the data of the last is synced.
constexpr int64_t kRanksAtOnce = 8;

// Writes a rank: its metadata on this thread, its values on workers' threads, and its commit on one
// of these. Leaves nothing behind unless Commit() was reached.
class RankWriter {
 public:
  // `is_copy`: the plan does not determine the values. `is_listed`: a listing lacked the rank file.
  RankWriter(const CheckpointWriter& to, const Plan& plan, RankPlan rank, const Digest& plan_sha256,
             bool is_copy, bool is_listed, WorkCounters* counters)
      : to_(to), plan_(plan), rank_(std::move(rank)), is_copy_(is_copy), counters_(*counters) {
    const Timer timer(&counters_.metadata_ns);
    layout_ = hdf5::LayOutRank(plan, rank_, plan_sha256);
    FileOutline outline = TakeOutline(&layout_);
    outline.metadata = {{"plan-sha256", ToHex(plan_sha256)}};
    receipt_.plan_sha256 = plan_sha256;
    receipt_.size = outline.size;
    for (const FileBox& box : layout_.boxes) receipt_.offsets.push_back(box.offset);
    receipt_.metadata_sha256 = HashGaps(outline);
    if (is_listed || !IsMade(to_.place(), outline, "plan")) file_ = to_.place().Begin(outline);
    outline.texts = nullptr;
    outline_ = std::move(outline);
    hdf5::GiveBackMemory(rank_.shards.size());
  }

  // Returns the tasks that write the file. If another process made the file, they only compute the
  // digests.
  std::vector<BoxTask> Tasks() { return TasksOf(layout_, file_.get(), &receipt_.digests); }

  // Syncs the data, puts the file in place, then writes its receipt. Returns false if the rank must
  // be made again.
  //
  // Each rank costs a disk at least this, regardless of the number of ranks:
  // - The file's data is synced before the file gets its name, so that a file of that name is
  //   complete.
  // - The folder is synced, so that no receipt exists without the file that it vouches for.
  // - The receipt's data is synced before the receipt gets its name.
  //
  // The names of receipts need no order, so Generate() syncs the folder once for all of them. If
  // the power fails before that, their ranks are made again.
  bool Commit() {
    const Timer timer(&counters_.sync_ns);
    const Place& place = to_.place();
    const std::function<void()> require_plan = [&] { to_.RequirePlan(receipt_.plan_sha256); };
    const bool is_own = file_ != nullptr && file_->Complete(require_plan);
    if (!is_own && !IsMade(place, outline_, "plan")) return false;
    receipt_.sources = SourcesRead(plan_, rank_);
    if (!is_own && (is_copy_ || !receipt_.sources.empty())) {
      RequireSameBytes(place, outline_, {receipt_.digests, receipt_.metadata_sha256});
    }
    // Where files are never replaced, another plan cannot have claimed the place meanwhile.
    const bool checks = !is_own || place.traits().removes;
    place.Put(
        ReceiptFile(rank_.rank), [&](const auto& append) { WriteReceipt(rank_, receipt_, append); },
        checks ? require_plan : nullptr);
    return true;
  }

 private:
  const CheckpointWriter& to_;
  const Plan& plan_;
  const RankPlan rank_;
  const bool is_copy_;
  WorkCounters& counters_;
  Receipt receipt_;
  FileLayout layout_;
  FileOutline outline_;  // without its texts
  std::unique_ptr<NewPlaceFile> file_;
};

// Writes the requested ranks that have no valid receipt or are damaged.
void WriteRanks(const Plan& plan, const GenerateRequest& request, CheckpointWriter& to,
                const Digest& plan_sha256, WorkCounters* counters, GenerateResult* result) {
  std::optional<ListedSizes> listed;
  const std::vector<int64_t> missing =
      MissingRanks(to.place(), plan, plan_sha256, request.ranks, {}, false, &listed);
  std::vector<int64_t> left;
  std::ranges::set_union(missing, request.damage.ranks, std::back_inserter(left));
  result->written = std::ssize(left);
  result->skipped = std::ssize(request.ranks) - std::ssize(left);
  result->bytes = BytesIn(plan, left);
  to.Prepare(!left.empty());
  const auto tick = [&](int64_t done) {
    if (!request.progress) return;
    request.progress(*counters, result->skipped + done, std::ssize(request.ranks));
  };
  MakeFiles(
      {to.place(), request.workers, request.source, kRanksAtOnce, "ranks", tick}, std::move(left),
      [&](int64_t r) -> FileWork {
        const auto writer = std::make_shared<RankWriter>(to, plan, PlanRank(plan, r), plan_sha256,
                                                         request.source != nullptr,
                                                         listed && !listed->contains(r), counters);
        return {writer->Tasks(), [writer] { return writer->Commit(); }};
      },
      counters);
}

}  // namespace

GenerateResult FindRemainingWork(const Plan& plan, const std::string& folder,
                                 const std::vector<int64_t>& ranks) {
  const std::string plan_json = WritePlan(plan);
  const std::unique_ptr<CheckpointWriter> to = CheckpointWriter::At(folder);
  std::vector<int64_t> left = ranks;
  if (to->IsClaimed(plan_json)) {
    left = MissingRanks(to->place(), plan, Sha256Of(plan_json), ranks);
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
  GenerateResult result;
  std::string plan_json = WritePlan(plan);
  const Digest plan_sha256 = Sha256Of(plan_json);
  const SignalsWait signals;  // The caller reports what happens to finished ranks.
  const std::unique_ptr<CheckpointWriter> to = CheckpointWriter::At(request.folder);
  to->Claim({std::exchange(plan_json, {}), request.claim, !request.is_shared});
  to->WriteDevices(plan.graph.mesh);
  // WriteRanks() releases its blocks before files that describe other files take memory.
  WriteRanks(plan, request, *to, plan_sha256, counters, &result);
  // Syncs the names of receipts, including receipts of a killed run.
  to->place().Sync("ranks");

  // From here on, only files that describe other files are written.
  const bool all = std::ssize(request.ranks) == plan.world_size();
  const int64_t near = request.ranks.empty() ? 0 : request.ranks.back();
  if (!all && LacksRank(to->place(), plan.world_size(), near)) {
    // Other processes write the rest.
  } else if (result.written == 0 && !request.damage.completion &&
             IsFinalized(to->place(), WantsIndex(plan, request.index))) {
    // The manifest vouches for the existing receipts of the other ranks. If many processes read all
    // of them, the cost would be quadratic.
    result.complete = true;
    if (to->place().traits().removes) to->RemoveLeftOvers(plan.world_size());
  } else {
    const Timer timer(&counters->finalize_ns);
    const FinalizeResult finalized = Finalize(*to, plan, plan_sha256, request.index);
    result.complete = finalized.missing.empty();
    if (all && !result.complete) {
      throw Error(
          ExitCode::kWorld,
          fmt::format("`{}` is unfinished: {} of {} ranks were complete, but their files are gone",
                      request.folder, finalized.missing.size(), plan.world_size()),
          "stop what removes or damages files there, and run the same command again");
    }
  }
  to->RequireInPlace();
  to->RequireDevices(WriteDeviceLayout(plan.graph.mesh));
  return result;
}

}  // namespace shardinit
