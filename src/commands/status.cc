#include <fmt/format.h>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr size_t kMostRanges = 1000;  // for people

struct StatusOptions {
  explicit StatusOptions(CLI::App& app) {
    app.add_option("DIR", folder, "Folder of the checkpoint")->required();
    AddJson(app, &json);
  }

  std::string folder;
  bool json = false;
};

ExitCode RunStatus(const StatusOptions& options) {
  Digest plan_sha256;
  const Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  const CheckpointFolder folder(options.folder);
  const std::vector<int64_t> missing = MissingRanks(folder, plan, plan_sha256);
  const bool has_manifest = folder.root().Exists(kManifestName);
  const bool complete = has_manifest && missing.empty();
  const int64_t done = plan.world_size() - static_cast<int64_t>(missing.size());
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder);
    out.Member("name", plan.graph.name).Member("complete", complete);
    out.Member("world_size", plan.world_size()).Member("ranks_done", done);
    out.Member("missing_ranks", RanksInText(missing)).EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  std::string text = fmt::format("{}: {}: {} of {} {} there, {}\n", Escape(options.folder),
                                 plan.graph.name, Grouped(done), Count(plan.world_size(), "rank"),
                                 plan.world_size() == 1 ? "is" : "are",
                                 complete          ? "complete"
                                 : missing.empty() ? "not finalized: run `shardinit finalize`"
                                 : has_manifest    ? "damaged: it was complete; run `gen` again"
                                                   : "unfinished");
  if (!missing.empty()) {
    const std::string ranks = RanksInText(missing, kMostRanges);
    text +=
        fmt::format("missing: {}{}\n", ranks, ranks.ends_with("…") ? " (`--json` has all)" : "");
  }
  Print(text);
  return ExitCode::kOk;
}

}  // namespace

extern const Command kStatus = {"status", "Show which ranks of a checkpoint are there",
                                Configure<RunStatus>};

}  // namespace shardinit
