#include <fmt/format.h>

#include "base/text.h"
#include "checkpoint/bucket.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "plan/relayout.h"
#include "report/facts.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct FinalizeOptions {
  explicit FinalizeOptions(CLI::App& app) {
    TakesUrl(app.add_option("DIR", folder, "Folder of the checkpoint"))->required();
    app.add_flag("--detached", detached, "The ranks' files are elsewhere: take receipts alone");
    AddIndex(app, &index);
    AddJson(app, &json);
  }

  std::string folder, index = "auto";
  bool detached = false, json = false;
};

FinalizeResult FinalizeFolder(const FinalizeOptions& options, IndexMode index, Plan plan,
                              const Digest& plan_sha256) {
  const CheckpointFolder folder(options.folder);
  LoadDevices(folder.place(), &plan);
  RequireListedDevices(folder, plan.graph.mesh);
  return Finalize(folder, plan, plan_sha256, index, options.detached);
}

FinalizeResult FinalizeInBucket(const FinalizeOptions& options, IndexMode index, Plan plan,
                                const Digest& plan_sha256) {
  BucketCheckpoint bucket(options.folder);
  LoadDevices(bucket.place(), &plan);
  return bucket.Finalize(plan, plan_sha256, index, options.detached);
}

const char* HintForMissing(const std::string& folder, const Plan& plan) {
  if (!IsCopy(plan)) return "generate them with `shardinit gen SPEC -o DIR --ranks …`";
  // The folder of a copy appears when it is complete; objects in a bucket do before.
  return IsBucketUrl(folder)
             ? "make them with the command that copies the tensors, with `--ranks …`"
             : "remove it, and copy again";
}

ExitCode RunFinalize(const FinalizeOptions& options) {
  const IndexMode index = FindIndexMode(options.index);
  Digest plan_sha256;
  const Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  const FinalizeResult result = (IsBucketUrl(options.folder) ? FinalizeInBucket : FinalizeFolder)(
      options, index, plan, plan_sha256);
  if (!result.missing.empty()) {
    throw Error(ExitCode::kWorld,
                fmt::format("cannot finalize `{}`: {} of {} ranks have no valid receipt: {}",
                            options.folder, result.missing.size(), plan.world_size(),
                            RanksInText(result.missing, 20)),
                HintForMissing(options.folder, plan));
  }
  if (options.json) {
    Print(
        FactsInJson({{"folder", options.folder}, {"complete", true}, {"index", result.has_index}}));
  } else {
    PrintUnlessQuiet(fmt::format("{}: complete{}\n", Escape(options.folder),
                                 result.has_index ? "" : ", without index.h5"));
  }
  return ExitCode::kOk;
}

}  // namespace

extern const Command kFinalize = {
    "finalize", "Complete a checkpoint whose ranks were generated apart", Configure<RunFinalize>};

}  // namespace shardinit
