#include "plan/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>

#include "base/file.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/talk.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/options.h"
#include "manifest/copy.h"
#include "manifest/receipt.h"
#include "manifest/verify.h"
#include "plan/devices.h"
#include "plan/diff.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct ReshardOptions {
  SpecOptions spec;  // its path is that of --spec
  WorkOptions work;
  std::string from, folder, uneven, index = "auto";
  bool json = false;
};

// Requires that both plans draw the same model alike.
void RequireSameModel(const std::string& spec, const std::string& folder, const Plan& from,
                      const Plan& to) {
  for (const TensorDifference& tensor : Compare(from, to).tensors) {
    std::string what;
    if (!tensor.before || !tensor.after) {
      what = fmt::format("only {} has `{}`", tensor.before ? "the checkpoint" : "the spec",
                         tensor.path);
    }
    for (const Change& change : tensor.changes) {
      if (change.what == "sharding") continue;
      what = fmt::format("{} of `{}`: {} in the checkpoint, {} in the spec", change.what,
                         tensor.path, change.before, change.after);
      break;
    }
    if (what.empty()) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not the model of `{}`: {}", spec, folder, what),
                "give the spec that the checkpoint was made from");
  }
}

Plan NewPlan(const ReshardOptions& options, const Plan& from) {
  if (!options.spec.request.path.empty()) {
    if (!options.uneven.empty()) {
      throw Error(ExitCode::kUsage, "`--uneven` is for a checkpoint without a spec",
                  "the spec says it");
    }
    Plan to = options.spec.Load();
    RequireSameModel(options.spec.request.path, options.from, from, to);
    return to;
  }
  const SpecRequest& request = options.spec.request;
  if (!request.sets.empty() || !options.spec.layout.empty()) {
    throw Error(ExitCode::kUsage, "`--set` and `--layout` are for a spec, and none is given",
                "add `--spec SPEC`");
  }
  if (!options.uneven.empty() && options.uneven != "error" && options.uneven != "chunk") {
    throw Error(ExitCode::kUsage,
                fmt::format("`--uneven {}`: use `error` or `chunk`", options.uneven));
  }
  Plan to = from;
  if (!request.sharding.empty()) {
    Diagnostics diagnostics;
    to = CutAs(from, fmt::format("{}/{} as a spec", options.from, kPlanName), request.mesh,
               request.sharding, options.uneven, diagnostics);
    Talk(Render(diagnostics.all()));
  } else if (!request.mesh.empty()) {
    to = OnMesh(from, request.mesh, options.uneven == "chunk");
  }
  if (const auto replicas = options.spec.FindReplicas()) to.graph.replicas = *replicas;
  return MakePlan(std::move(to.graph));
}

// Makes the boxes of these ranks once more, without writing, and calls `differs` with each rank of
// `to` whose receipt in `folder` is missing or has other digests.
void CompareRanks(const ReshardOptions& options, const CheckpointFolder& folder,
                  const std::vector<int64_t>& ranks, const Plan& to, CheckpointCopy& copy,
                  WorkCounters* counters, const std::function<void(int64_t rank)>& differs) {
  const Digest plan_sha256 = Sha256Of(WritePlan(to));
  Progress progress(options.work.Mode(), "comparing", BytesIn(to, ranks), options.json);
  FileGroups files(options.work.Workers(false), counters, &copy, 2,
                   [&](int64_t) { progress.Update(counters->hashed_bytes, ""); });
  for (const int64_t r : ranks) {
    ThrowIfInterrupted();
    const RankPlan rank = PlanRank(to, r);
    const auto receipt = FindReceipt(folder, rank, plan_sha256);
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

std::vector<int64_t> RanksOf(const Plan& plan) {
  std::vector<int64_t> ranks(static_cast<size_t>(plan.world_size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

// Tells whether the folder holds this very copy, undamaged: reads all of it and makes it once more
// to compare, but does not write it. Throws Error (kConflict) if something else is there.
bool IsThere(const ReshardOptions& options, CheckpointCopy& copy, const Plan& to,
             WorkCounters* counters) {
  if (!Exists(options.folder) || IsEmptyFolder(options.folder)) return false;
  const auto conflict = [&](std::string_view what) {
    return Error(ExitCode::kConflict, fmt::format("`{}` exists and {}", options.folder, what),
                 "choose another folder with `-o`");
  };
  const std::string plan_json = WritePlan(to);
  std::string present;
  if (!ReadIfFile(options.folder + "/" + kPlanName, kPlanLimit, &present).empty() ||
      present != plan_json || !Exists(options.folder + "/" + kManifestName)) {
    throw conflict("holds something else");
  }
  const CheckpointFolder folder(options.folder);
  if (folder.ReadDevices() != WriteDeviceLayout(to.graph.mesh)) {
    throw conflict("has other slices or devices");
  }
  {
    std::mutex mutex;
    Progress progress(options.work.Mode(), "checking", BytesInFiles(to), options.json);
    const VerifyResult result =
        Verify(options.folder, options.work.Workers(false).jobs, [&](int64_t bytes, int64_t) {
          const std::lock_guard lock(mutex);
          progress.Update(bytes, "");
        });
    if (!result.findings.empty()) {
      const Finding& first = *result.findings.begin();
      throw Error(
          ExitCode::kConflict,
          fmt::format("`{}` exists and is damaged: {}: {}{}", options.folder, first.file,
                      first.tensor.empty() ? "" : fmt::format("`{}` ", first.tensor),
                      first.message),
          fmt::format("`shardinit verify {}` says all that is; or choose another folder with `-o`",
                      options.folder));
    }
  }
  CompareRanks(options, folder, RanksOf(to), to, copy, counters,
               [&](int64_t) { throw conflict("has other values"); });
  MakeFolder(options.folder);  // syncs its name, which a killed run may have left off the disk
  return true;
}

// Tells whether to go on with what an interrupted run left in `staged`: only if it is a part of
// this copy, and nothing else is in there.
bool MayGoOn(const std::string& staged, const Plan& to) {
  try {
    const CheckpointFolder folder(staged);
    folder.IsClaimed(WritePlan(to));
    const std::string foreign = folder.FirstForeign(to.world_size());
    if (foreign.empty()) return true;
    Talk(
        fmt::format("shardinit: `{}` is none of ours: what is beside it is left as it is, and all "
                    "is copied anew\n",
                    Escape(foreign)));
  } catch (const Error& e) {
    Talk(fmt::format("shardinit: {}: it is left as it is, and all is copied anew\n",
                     Escape(e.what())));
  }
  return false;
}

// Finds the ranks in a folder that must be made again: their files differ from their receipts, or
// from the copy.
Damage FindOthers(const ReshardOptions& options, const std::string& staged, const Plan& to,
                  CheckpointCopy& copy, WorkCounters* counters) {
  const CheckpointFolder folder(staged);
  std::vector<int64_t> kept;
  for (const int64_t rank : RanksOf(to)) {
    if (Exists(staged + "/" + ReceiptFile(rank))) kept.push_back(rank);
  }
  Damage damage = FindDamage(staged, to, Sha256Of(WritePlan(to)), kept,
                             options.work.Workers(false).jobs, nullptr);
  std::vector<int64_t> whole;
  std::set_difference(kept.begin(), kept.end(), damage.ranks.begin(), damage.ranks.end(),
                      std::back_inserter(whole));
  std::mutex mutex;
  CompareRanks(options, folder, whole, to, copy, counters, [&](int64_t rank) {
    const std::lock_guard lock(mutex);
    damage.ranks.push_back(rank);
  });
  std::sort(damage.ranks.begin(), damage.ranks.end());
  return damage;
}

// Copies into a folder beside the one that is asked for, which gets its name at the end.
GenerateResult Copy(const ReshardOptions& options, const Plan& from, const Digest& plan_sha256,
                    const Plan& to, WorkCounters* counters) {
  CheckpointCopy copy(options.from, from, plan_sha256, to);
  const Digest key = Sha256Of(ToHex(copy.manifest_sha256()) + ToHex(Sha256Of(WritePlan(to))));
  const GenerateResult there = {.skipped = to.world_size(), .complete = true};
  if (IsThere(options, copy, to, counters)) {
    StagedFolder::RemoveLeftOvers(options.folder, key);
    return there;
  }
  StagedFolder staged(options.folder, key,
                      [&](const std::string& folder) { return MayGoOn(folder, to); });
  try {
    GenerateRequest request;
    request.folder = staged.staged();
    request.ranks = RanksOf(to);
    request.workers = options.work.Workers(true);
    request.index = FindIndexMode(options.index);
    request.source = &copy;
    if (staged.is_old()) request.damage = FindOthers(options, request.folder, to, copy, counters);
    Progress progress(options.work.Mode(), "copying", BytesIn(to, request.ranks), options.json);
    request.progress = [&](const WorkCounters& c, int64_t done, int64_t ranks) {
      progress.Update(c.written_bytes, ranks > 1 ? fmt::format("rank {} of {}", done, ranks) : "");
    };
    const GenerateResult result = Generate(to, request, counters);
    staged.Commit();
    return result;
  } catch (const Error& e) {
    if (e.code() == ExitCode::kDifferent || e.code() == ExitCode::kConflict) staged.Remove();
    // Another process was faster.
    if (e.code() == ExitCode::kConflict && IsThere(options, copy, to, counters)) return there;
    throw;
  } catch (const Interrupted&) {
    Talk(
        fmt::format("shardinit: interrupted; ranks that are done stay in `{}`, and the same "
                    "command makes the rest\n",
                    Escape(staged.staged())));
    throw;
  }
}

ExitCode RunReshard(const ReshardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Digest plan_sha256{};
  Plan from = LoadCheckpointPlan(options.from, &plan_sha256);
  RequireOutside(options.folder, options.from);
  LoadDevices(CheckpointFolder(options.from), &from);
  const Plan to = NewPlan(options, from);
  if (!from.graph.mesh.devices.IsPlain() && to.graph.mesh.devices.IsPlain() &&
      options.spec.request.path.empty()) {
    Talk(
        "shardinit: where the devices of the new mesh are is not known; the new checkpoint says "
        "nothing of slices and devices\n  hint: give the spec, with `--spec`\n");
  }
  WorkCounters counters;
  const GenerateResult result = Copy(options, from, plan_sha256, to, &counters);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", to.graph.name);
    out.Member("from", options.from).Member("folder", options.folder);
    out.Member("world_size", to.world_size());
    out.Member("ranks_written", result.written).Member("ranks_skipped", result.skipped);
    out.Member("bytes", result.bytes).Member("seconds", seconds).EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  if (result.bytes == 0) {
    Talk(fmt::format("shardinit: nothing was left to copy to `{}`\n", Escape(options.folder)));
  } else {
    Talk(fmt::format("shardinit: copied {} in {:.2f} s ({:.2f} GB/s)\n", InBytes(result.bytes),
                     seconds, static_cast<double>(result.bytes) / seconds / 1e9));
  }
  Print(fmt::format("{}: {}, {}, complete\n", Escape(options.folder),
                    Count(to.parameters, "parameter"), Count(to.world_size(), "rank")));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kReshard = {
    .name = "reshard",
    .summary = "Copy a checkpoint to another mesh or layout",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<ReshardOptions>();
      app.add_option("DIR", options->from, "Folder of the checkpoint")->required();
      app.add_option("-o,--output", options->folder, "Folder to make")
          ->required()
          ->type_name("DIR2")
          ->check(NotEmpty);
      app.add_option("--spec", options->spec.request.path,
                     "As this spec says, which is of the same model")
          ->type_name("SPEC")
          ->check(NotEmpty);
      options->spec.AddOverridesTo(app);
      options->spec.AddLayoutTo(app);
      options->spec.AddReplicasTo(app);
      app.add_option("--uneven", options->uneven,
                     "Without --spec: what to do with a dimension that the mesh does not divide")
          ->type_name("error|chunk");
      AddIndex(app, &options->index);
      options->work.AddJobsTo(app, "copy and hash");
      options->work.AddMemoryTo(app);
      options->work.AddProgressTo(app);
      AddJson(app, &options->json);
      return [options] { return RunReshard(*options); };
    },
};

}  // namespace shardinit
