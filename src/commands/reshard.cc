#include "checkpoint/reshard.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "plan/diff.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct ReshardOptions {
  explicit ReshardOptions(CLI::App& app) {
    TakesUrl(app.add_option("DIR", from, "Folder of the checkpoint"))->required();
    TakesBucket(AddText(app, "-o,--output", "DIR2", &folder, "Folder to create"))->required();
    AddText(app, "--spec", "SPEC", &spec.request.path,
            "Spec of the same model, with the new mesh, sharding and layout");
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app);
    spec.AddReplicasTo(app);
    app.add_option("--uneven", uneven,
                   "Without --spec: how to shard a dimension that the mesh does not divide")
        ->type_name("error|chunk");
    AddPartOfFile(app, &part);
    AddRanks(app, &ranks);
    AddIndex(app, &index);
    work.AddJobsTo(app, "copy and hash");
    work.AddMemoryTo(app);
    work.AddProgressTo(app);
    AddJson(app, &json);
  }

  SpecOptions spec;  // its path is the value of --spec
  WorkOptions work;
  RankOptions ranks;
  std::string from, folder, uneven, part, index = "auto";
  bool json = false;
};

// Throws Error (kUsage) unless both plans draw the same tensors. Shardings may differ.
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
                fmt::format("`{}` and `{}` are different models: {}", spec, folder, what),
                "give the spec that the checkpoint was made from");
  }
}

Plan NewPlan(const ReshardOptions& options, const Plan& from) {
  if (!options.spec.request.path.empty()) {
    if (!options.uneven.empty()) {
      throw Error(ExitCode::kUsage, "`--uneven` only applies without a spec",
                  "write `uneven` in the spec");
    }
    Plan to = options.spec.Load();
    RequireSameModel(options.spec.request.path, options.from, from, to);
    return to;
  }
  const SpecRequest& request = options.spec.request;
  if (!request.sets.empty() || !request.sources.empty() || !options.spec.layout.empty()) {
    throw Error(ExitCode::kUsage,
                "`--set`, `--source` and `--layout` need a spec, but none is given",
                "add `--spec SPEC`");
  }
  if (!options.uneven.empty()) ChoiceOf("--uneven", options.uneven, {"error", "chunk"});
  Plan to = ShardFolder(request, from, fmt::format("{}/{}", options.from, kPlanName),
                        options.uneven, "`--uneven chunk` allows shorter last parts");
  if (const auto replicas = options.spec.FindReplicas()) to.graph.replicas = *replicas;
  return MakePlan(std::move(to.graph));
}

ExitCode RunReshard(const ReshardOptions& options) {
  const Stopwatch time;
  RequireFolderName(options.folder);
  const TensorFolder folder = OpenToCopy(
      {.from = options.from, .to = options.folder, .part = options.part, .may_be_source = true});
  const Plan& from = folder.plan();
  const Plan to = NewPlan(options, from);
  if (!from.graph.mesh.devices.IsPlain() && to.graph.mesh.devices.IsPlain() &&
      options.spec.request.path.empty()) {
    Talk(
        "shardinit: the devices of the new mesh are not known; the new checkpoint records no "
        "slices and devices\n"
        "  hint: give the spec, with `--spec SPEC`\n");
  }
  WorkCounters counters;
  FolderCopy copy(folder, to);
  const ReshardRequest request = {
      .copy = &copy,
      .folder = options.folder,
      .workers = options.work.Workers(true),
      .index = FindIndexMode(options.index),
      .ranks = options.ranks.SelectedRanks(to),
      .claim = ClaimOf(folder),
      .progress = options.work.Mode(),
      .is_quiet = options.json,
      .warn = [](const std::string& s) { Talk(fmt::format("shardinit: {}\n", Escape(s))); }};
  const GenerateResult result = Reshard(to, request, &counters);
  const double seconds = time.seconds();
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", to.graph.name);
    out.Member("from", options.from).Member("folder", options.folder);
    out.Member("world_size", to.world_size());
    out.Member("ranks_written", result.written).Member("ranks_skipped", result.skipped);
    out.Member("bytes", result.bytes);
    if (request.ranks) out.Member("complete", result.complete);
    out.Member("seconds", seconds).EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  if (result.written == 0) {
    TalkUnlessQuiet(
        fmt::format("shardinit: nothing was left to copy to `{}`\n", Escape(options.folder)));
  } else {
    TalkUnlessQuiet(fmt::format("shardinit: copied {}\n", InSpeed(result.bytes, seconds)));
  }
  if (!result.complete) {
    PrintUnlessQuiet(
        fmt::format("{}: unfinished: other ranks are missing\n", Escape(options.folder)));
    return ExitCode::kOk;
  }
  PrintUnlessQuiet(fmt::format("{}: {}, {}, complete\n", Escape(options.folder),
                               Count(to.parameters, "parameter"), Count(to.world_size(), "rank")));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kReshard = {"reshard", "Copy a checkpoint to another mesh or layout",
                                 Configure<RunReshard>};

}  // namespace shardinit
