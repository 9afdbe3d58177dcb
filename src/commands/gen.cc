#include <fmt/format.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/write.h"
#include "commands/command.h"
#include "commands/options.h"
#include "place/place.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct GenOptions {
  explicit GenOptions(CLI::App& app) {
    spec.AddTo(app);
    spec.AddLayoutTo(app);
    TakesBucket(AddText(app, "-o,--output", "DIR", &folder, "Folder of the checkpoint"))
        ->required();
    AddRanks(app, &ranks);
    spec.AddReplicasTo(app);
    AddIndex(app, &index);
    work.AddJobsTo(app, "generate");
    work.AddMemoryTo(app);
    work.AddProgressTo(app);
    app.add_flag("--repair", repair,
                 "Check every byte of existing files, and regenerate damaged ones");
    app.add_flag("--dry-run", dry_run, "Check the spec and the folder without writing");
    app.add_flag("--stats", stats, "Show time and bytes of each stage");
    AddJson(app, &json);
  }

  SpecOptions spec;
  WorkOptions work;
  RankOptions ranks;
  std::string folder, index = "auto";
  bool repair = false, dry_run = false, stats = false, json = false;
};

// A stage of a run, with the total time of all threads.
struct Stage {
  const char* name;
  int64_t bytes;
  int64_t ns;
};

std::vector<Stage> StagesOf(const WorkCounters& c, int64_t plan_ns) {
  return {{"plan", 0, plan_ns},
          {"metadata", 0, c.metadata_ns},
          {"generate", c.generated_bytes, c.generate_ns},
          {"hash", c.hashed_bytes, c.hash_ns},
          {"write", c.written_bytes, c.write_ns},
          {"sync", 0, c.sync_ns},
          {"finalize", 0, c.finalize_ns}};
}

void PrintStats(const WorkCounters& counters, int64_t plan_ns, double seconds) {
  std::vector<std::vector<std::string>> rows = {{"stage", "bytes", "seconds", "GB/s"}};
  for (const Stage& stage : StagesOf(counters, plan_ns)) {
    const double s = static_cast<double>(stage.ns) / 1e9;
    rows.push_back(
        {stage.name, stage.bytes > 0 ? Grouped(stage.bytes) : "", fmt::format("{:.3f}", s),
         stage.bytes > 0 ? fmt::format("{:.2f}", static_cast<double>(stage.bytes) / s / 1e9) : ""});
  }
  Talk(Table(rows, {false, true, true, true}));
  Talk(fmt::format(
      "wall time {:.3f} s; seconds are summed over threads; {} of {} bytes written with O_DIRECT\n",
      seconds, Grouped(counters.direct_bytes), Grouped(counters.written_bytes)));
}

void PrintJson(const GenOptions& options, const Plan& plan, const GenerateResult& result,
               const WorkCounters& counters, int64_t plan_ns, double seconds) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("name", plan.graph.name).Member("folder", options.folder);
  out.Member("world_size", plan.world_size());
  out.Member("ranks_written", result.written).Member("ranks_skipped", result.skipped);
  out.Member("bytes", result.bytes).Member("complete", result.complete);
  out.Member("dry_run", options.dry_run).Member("seconds", seconds);
  if (options.stats) {
    out.Key("stages").BeginArray(JsonWriter::kLines);
    for (const Stage& stage : StagesOf(counters, plan_ns)) {
      out.BeginObject().Member("name", stage.name).Member("bytes", stage.bytes);
      out.Member("seconds", static_cast<double>(stage.ns) / 1e9).EndObject();
    }
    out.EndArray();
  }
  out.EndObject();
  Print(out.Finish());
}

// Generates the ranks or, with `--dry-run`, only examines the folder.
GenerateResult MakeRanks(const GenOptions& options, const Plan& plan, GenerateRequest request,
                         ProgressMode mode, WorkCounters* counters) {
  const int64_t total = BytesIn(plan, request.ranks);
  if (options.dry_run) {
    return FindRemainingWork(plan, options.folder, request.ranks);
  }
  try {
    if (options.repair) {
      Progress progress(mode, "checking", total, options.json);
      request.damage = FindRepairs(plan, options.folder, request.ranks, request.workers.jobs,
                                   [&](int64_t bytes, int64_t) { progress.Update(bytes); });
    }
    Progress progress(mode, "writing", total, options.json);
    request.progress = [&](const WorkCounters& c, int64_t done, int64_t ranks) {
      progress.Update(c.written_bytes, ranks > 1 ? fmt::format("rank {} of {}", done, ranks) : "");
    };
    return Generate(plan, request, counters);
  } catch (const Interrupted&) {
    Talk("shardinit: interrupted; finished ranks are kept, and the same command writes the rest\n");
    throw;
  }
}

void PrintText(const GenOptions& options, const Plan& plan, int64_t ranks,
               const GenerateResult& result, double seconds) {
  const std::string folder = Escape(options.folder);
  if (options.dry_run) {
    return Print(fmt::format(
        "would write {} of {} for {} of {} to {}{}\n", InBytes(result.bytes), plan.graph.name,
        result.written, Count(plan.world_size(), "rank"), folder,
        result.skipped == 0 ? ""
                            : fmt::format("; {} there already", Count(result.skipped, "rank"))));
  }
  if (result.written > 0)
    TalkUnlessQuiet(fmt::format("shardinit: wrote {}\n", InSpeed(result.bytes, seconds)));
  if (result.skipped > 0) {
    TalkUnlessQuiet(fmt::format("shardinit: {} of {} {} there already\n", result.skipped,
                                Count(ranks, "rank"), result.skipped == 1 ? "was" : "were"));
  }
  PrintUnlessQuiet(
      result.complete
          ? fmt::format("{}: {}, {}, complete\n", folder, Count(plan.parameters, "parameter"),
                        Count(plan.world_size(), "rank"))
          : fmt::format("{0}: unfinished: other ranks are missing; see `shardinit status {0}`\n",
                        folder));
}

void RunGen(const GenOptions& options) {
  const Stopwatch time;
  RequireFolderName(options.folder);
  GenerateRequest request;
  request.folder = options.folder;
  request.workers = options.work.Workers(true);
  request.index = FindIndexMode(options.index);
  const ProgressMode mode = options.work.Mode();
  if (options.repair && options.dry_run) {
    throw Usage("`--dry-run` writes nothing, so it repairs nothing",
                fmt::format("`shardinit verify {}` shows the damage", options.folder));
  }
  if (options.repair && !Place::TraitsAt(options.folder).removes) {
    throw Usage("`--repair` is for folders: objects in a bucket are never replaced",
                fmt::format("use the store's own tool to remove what `shardinit verify {}` "
                            "reports, and run the same command without it",
                            options.folder));
  }
  const Plan plan = options.spec.LoadToMake();
  request.ranks = options.ranks.Ranks(plan);
  const int64_t plan_ns = time.ns();

  WorkCounters counters;
  const GenerateResult result = MakeRanks(options, plan, request, mode, &counters);
  const double seconds = time.seconds();
  if (options.json) PrintJson(options, plan, result, counters, plan_ns, seconds);
  const bool shows_stats = options.stats || LoudnessOfTalk() == Loudness::kVerbose;
  if (shows_stats && (options.json || !options.dry_run)) PrintStats(counters, plan_ns, seconds);
  if (!options.json) PrintText(options, plan, std::ssize(request.ranks), result, seconds);
}

}  // namespace

extern const Command kGen = {"gen", "Generate a checkpoint, or some ranks of it",
                             Configure<RunGen>};

}  // namespace shardinit
