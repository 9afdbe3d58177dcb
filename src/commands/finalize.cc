#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/ranks.h"

namespace shardinit {
namespace {

struct FinalizeOptions {
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
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder).Member("complete", true);
    out.Member("index", result.has_index).EndObject();
    Print(out.Finish());
  } else {
    Print(fmt::format("{}: complete{}\n", Escape(options.folder),
                      result.has_index ? "" : ", without index.h5"));
  }
  return ExitCode::kOk;
}

}  // namespace

extern const Command kFinalize = {
    .name = "finalize",
    .summary = "Complete a checkpoint whose ranks were generated apart",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<FinalizeOptions>();
      app.add_option("DIR", options->folder, "Folder of the checkpoint")->required();
      AddIndex(app, &options->index);
      AddJson(app, &options->json);
      return [options] { return RunFinalize(*options); };
    },
};

}  // namespace shardinit
