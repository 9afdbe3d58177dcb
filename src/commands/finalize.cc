#include <fmt/format.h>

#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/facts.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct FinalizeOptions {
  explicit FinalizeOptions(CLI::App& app) {
    app.add_option("DIR", folder, "Folder of the checkpoint")->required();
    AddIndex(app, &index);
    AddJson(app, &json);
  }

  std::string folder, index = "auto";
  bool json = false;
};

ExitCode RunFinalize(const FinalizeOptions& options) {
  const IndexMode index = FindIndexMode(options.index);
  Digest plan_sha256;
  Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  const CheckpointFolder folder(options.folder);
  LoadDevices(folder, &plan);
  RequireListedDevices(folder, plan.graph.mesh);
  const FinalizeResult result = Finalize(folder, plan, plan_sha256, index);
  if (!result.missing.empty()) {
    throw Error(ExitCode::kWorld,
                fmt::format("cannot finalize `{}`: {} of {} ranks have no valid receipt: {}",
                            options.folder, result.missing.size(), plan.world_size(),
                            RanksInText(result.missing, 20)),
                "generate them with `shardinit gen SPEC -o DIR --ranks …`");
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
