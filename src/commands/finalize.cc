#include <fmt/format.h>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
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
    TakesBucket(app.add_option("DIR", folder, "Folder of the checkpoint"))->required();
    app.add_flag("--detached", detached, "The ranks' files are elsewhere: check receipts only");
    AddIndex(app, &index);
    AddJson(app, &json);
  }

  std::string folder, index = "auto";
  bool detached = false, json = false;
};

const char* HintForMissing(const Place& place, const Plan& plan) {
  if (!IsCopy(plan)) return "generate them with `shardinit gen SPEC -o DIR --ranks …`";
  // The folder of a copy appears when complete, but objects in a bucket appear earlier.
  return place.traits().is_remote
             ? "write them with the command that copies the tensors, with `--ranks …`"
             : "remove it, and copy again";
}

void RunFinalize(const FinalizeOptions& options) {
  const IndexMode index = FindIndexMode(options.index);
  Digest plan_sha256;
  Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  const auto to = CheckpointWriter::At(options.folder);
  LoadDevices(to->place(), &plan);
  // In a bucket, an existing manifest is compared in any case.
  if (to->place().traits().removes) RequireListedDevices(to->place(), plan.graph.mesh);
  const FinalizeResult result = Finalize(*to, plan, plan_sha256, index, options.detached);
  if (!result.missing.empty()) {
    throw Error(ExitCode::kWorld,
                fmt::format("cannot finalize `{}`: {} of {} ranks have no valid receipt: {}",
                            options.folder, result.missing.size(), plan.world_size(),
                            RanksInText(result.missing, 20)),
                HintForMissing(to->place(), plan));
  }
  if (options.json) {
    Print(
        FactsInJson({{"folder", options.folder}, {"complete", true}, {"index", result.has_index}}));
  } else {
    PrintUnlessQuiet(fmt::format("{}: complete{}\n", Escape(options.folder),
                                 result.has_index ? "" : ", without index.h5"));
  }
}

}  // namespace

extern const Command kFinalize = {"finalize",
                                  "Complete a checkpoint whose ranks were generated separately",
                                  Configure<RunFinalize>};

}  // namespace shardinit
