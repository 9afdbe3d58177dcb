#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "plan/part.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr size_t kMostRanges = 1000;  // for people

struct StatusOptions {
  explicit StatusOptions(CLI::App& app) {
    TakesUrl(app.add_option("DIR", folder, "Folder of the checkpoint"))->required();
    app.add_option("--missing-parts", parts,
                   "Only print which of N parts, as `gen --part` has them, lack a rank")
        ->type_name("N");
    AddJson(app, &json);
  }

  std::string folder;
  int64_t parts = 0;
  bool json = false;
};

// Returns the parts that lack a rank.
std::vector<int64_t> MissingParts(const Plan& plan, int64_t count,
                                  const std::vector<int64_t>& missing) {
  const std::vector<int64_t> first = RanksOfParts(plan, count);
  std::vector<int64_t> parts;
  for (int64_t part = 0; part < count; ++part) {
    const auto next = std::lower_bound(missing.begin(), missing.end(), first[part]);
    if (next != missing.end() && *next < first[part + 1]) parts.push_back(part);
  }
  return parts;
}

ExitCode RunStatus(const StatusOptions& options) {
  Digest plan_sha256;
  if (options.parts != 0) RequirePartCount("--missing-parts", options.parts);
  const Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  const auto [missing, has_manifest] = LookForRanks(options.folder, plan, plan_sha256);
  const bool complete = has_manifest && missing.empty();
  const std::vector<int64_t> parts =
      options.parts == 0 ? std::vector<int64_t>() : MissingParts(plan, options.parts, missing);
  const int64_t done = plan.world_size() - static_cast<int64_t>(missing.size());
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder);
    out.Member("name", plan.graph.name).Member("complete", complete);
    out.Member("world_size", plan.world_size()).Member("ranks_done", done);
    out.Member("missing_ranks", RanksInText(missing));
    if (options.parts > 0) out.Member("missing_parts", RanksInText(parts));
    out.EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  if (options.parts > 0) {
    Print(RanksInText(parts) + "\n");
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
