#include "pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "manifest/rank_writer.h"

namespace shardinit {
namespace {

// Ranks that are open at once: the next one's metadata is made, and the last
// one's data is synced, while the one between is written.
constexpr int64_t kRanksAtOnce = 8;

// The first lines that differ, to say what is different.
std::string FirstDifference(std::string_view present, std::string_view wanted) {
  size_t line = 0;
  for (size_t i = 0; i < std::min(present.size(), wanted.size()) && present[i] == wanted[i]; ++i) {
    if (present[i] == '\n') line = i + 1;
  }
  const auto shown = [line](std::string_view text) {
    text = text.substr(std::min(text.size(), line));
    text = text.substr(0, std::min(text.find('\n'), size_t{100}));
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
  };
  return fmt::format("there it is `{}`, here `{}`", shown(present), shown(wanted));
}

// plan.json says what a folder is for. Whether it is there; throws if it is not this plan.
bool IsClaimed(const std::string& folder, const std::string& plan_json) {
  const std::string path = folder + "/" + kPlanName;
  if (Exists(folder) && !IsFolder(folder)) {
    throw Error(ExitCode::kConflict, fmt::format("`{}` exists and is not a folder", folder),
                "choose another output folder with `-o`");
  }
  if (!Exists(path)) return false;
  const std::string present = ReadFile(path, kPlanLimit);
  if (present == plan_json) return true;
  throw Error(
      ExitCode::kConflict,
      fmt::format("`{}` holds another plan: {}", folder, FirstDifference(present, plan_json)),
      "choose another folder with `-o`, or give the same spec and options as before");
}

// Makes the folder this plan's; returns the plan's digest. Of two processes that try it at once
// with different plans, one succeeds.
Digest ClaimFolder(const std::string& folder, const std::string& plan_json) {
  const bool claimed = IsClaimed(folder, plan_json);
  MakeFolder(folder);
  if (!claimed) {
    AtomicFile file(folder + "/" + kPlanName);
    file.Append(plan_json);
    if (!file.CommitNew()) IsClaimed(folder, plan_json);
  }
  const std::string ranks = folder + "/ranks";
  MakeFolder(ranks);
  if (IsLink(ranks)) {
    throw Error(ExitCode::kConflict, fmt::format("`{}` is a link to elsewhere", ranks),
                "choose another output folder with `-o`");
  }
  return Sha256Of(plan_json);
}

// Each rank: metadata here, values by the workers, then its commit on one of
// their threads. A rank that is dropped on the way leaves nothing behind.
void WriteRanks(const Plan& plan, const GenerateRequest& request, const Digest& plan_sha256,
                WorkCounters* counters, GenerateResult* result) {
  Workers workers(request.workers, counters);
  int64_t submitted = 0;
  const auto wait_for = [&](int64_t groups) {
    while (!workers.Wait(groups, 100)) {
      ThrowIfInterrupted();
      if (request.progress) {
        request.progress(*counters, result->skipped + workers.finished_groups(),
                         static_cast<int64_t>(request.ranks.size()));
      }
    }
  };
  for (const int64_t r : request.ranks) {
    ThrowIfInterrupted();
    RankPlan rank = PlanRank(plan, r);
    if (!std::binary_search(request.damage.ranks.begin(), request.damage.ranks.end(), r) &&
        FindReceipt(request.folder, rank, plan_sha256)) {
      ++result->skipped;
      continue;
    }
    wait_for(submitted - kRanksAtOnce + 1);
    result->bytes += rank.bytes();
    const auto writer =
        std::make_shared<RankWriter>(request.folder, plan, std::move(rank), plan_sha256, counters);
    workers.Submit(writer->Tasks(), [writer] { writer->Commit(); });
    ++submitted;
  }
  wait_for(submitted);
  result->written = submitted;
}

}  // namespace

void CheckFolder(const Plan& plan, const std::string& folder) {
  IsClaimed(folder, WritePlan(plan));
}

Damage FindRepairs(const Plan& plan, const std::string& folder, const std::vector<int64_t>& ranks,
                   int jobs, const VerifyProgress& progress) {
  const std::string plan_json = WritePlan(plan), path = folder + "/" + kPlanName;
  const Digest plan_sha256 = Sha256Of(plan_json);
  std::string present, manifest;
  if (!ReadIfFile(path, kPlanLimit, &present).empty() || present != plan_json) {
    const std::string claim = fmt::format("\n \"plan_sha256\": \"{}\",\n", ToHex(plan_sha256));
    if (ReadIfFile(folder + "/" + kManifestName, kManifestLimit, &manifest).empty() &&
        manifest.find(claim) != manifest.npos) {
      WriteFileAtomically(path, plan_json);
    }
  }
  if (!IsClaimed(folder, plan_json)) return {};
  return FindDamage(folder, plan, plan_sha256, ranks, jobs, progress);
}

GenerateResult Generate(const Plan& plan, const GenerateRequest& request, WorkCounters* counters) {
  GenerateResult result;
  const Digest plan_sha256 = ClaimFolder(request.folder, WritePlan(plan));
  RemoveLeftOvers(request.folder);

  // Its blocks are given back before files that describe other files take memory.
  WriteRanks(plan, request, plan_sha256, counters, &result);
  // A killed run may have left names that are seen but are not on the disk yet.
  if (result.skipped > 0) SyncFolder(request.folder + "/ranks");

  // Beyond this point only files that describe other files are written.
  const bool all = static_cast<int64_t>(request.ranks.size()) == plan.world_size();
  if (!all && !MissingRanks(request.folder, plan, plan_sha256, 1).empty()) return result;
  if (result.written == 0 && !request.damage.completion &&
      IsFinalized(request.folder, WantsIndex(plan, request.index))) {
    result.complete = true;
  } else {
    const auto start = std::chrono::steady_clock::now();
    const FinalizeResult finalized = Finalize(request.folder, plan, plan_sha256, request.index);
    result.complete = finalized.missing.empty();
    counters->finalize_ns += (std::chrono::steady_clock::now() - start).count();
    if (all && !result.complete) {
      throw Error(ExitCode::kWorld,
                  fmt::format("`{}` is unfinished: {} of {} ranks were there and are no more",
                              request.folder, finalized.missing.size(), plan.world_size()),
                  "something else removes or damages files there; then the same command goes on");
    }
  }
  return result;
}

std::vector<TensorDigest> DigestTensors(const std::vector<const Tensor*>& tensors,
                                        const WorkerOptions& options,
                                        const ProgressFunction& progress, WorkCounters* counters) {
  std::vector<TensorDigest> digests;
  for (const Tensor* tensor : tensors) digests.push_back({tensor, {}});
  std::vector<BoxTask> tasks;
  for (TensorDigest& digest : digests) {
    tasks.push_back({digest.tensor, WholeOf(digest.tensor->shape), {}, &digest.sha256});
  }
  Workers workers(options, counters);
  workers.Submit(std::move(tasks), nullptr);
  while (!workers.Wait(1, 100)) {
    ThrowIfInterrupted();
    if (progress) progress(*counters, 0, 0);
  }
  return digests;
}

Digest ModelDigest(const std::vector<TensorDigest>& tensors) {
  std::vector<std::string> lines;
  for (const TensorDigest& digest : tensors) {
    lines.push_back(fmt::format("{} {} [{}] {}\n", digest.tensor->path,
                                InfoOf(digest.tensor->dtype).name,
                                fmt::join(digest.tensor->shape, ","), ToHex(digest.sha256)));
  }
  std::sort(lines.begin(), lines.end());
  Sha256 hash;
  for (const std::string& line : lines) hash.Update(line);
  return hash.Finish();
}

}  // namespace shardinit
