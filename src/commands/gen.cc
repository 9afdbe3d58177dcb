#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/write.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct GenOptions {
  SpecOptions spec;
  WorkOptions work;
  RankOptions ranks;
  std::string folder, index = "auto";
  bool repair = false, dry_run = false, stats = false, json = false;
};

// A stage of a run, with the time that all threads together spent on it.
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

ExitCode RunGen(const GenOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto since_start = [&] { return std::chrono::steady_clock::now() - start; };
  GenerateRequest request;
  request.folder = options.folder;
  request.workers = options.work.Workers(true);
  request.index = FindIndexMode(options.index);
  const ProgressMode mode = options.work.Mode();
  if (options.repair && options.dry_run) {
    throw Error(ExitCode::kUsage, "`--dry-run` writes nothing, so it repairs nothing",
                fmt::format("`shardinit verify {}` says what is damaged", options.folder));
  }

  const Plan plan = options.spec.Load();
  request.ranks = options.ranks.Ranks(plan.graph.mesh);
  const int64_t plan_ns = since_start().count();

  WorkCounters counters;
  GenerateResult result;
  const int64_t total = BytesIn(plan, request.ranks);
  if (options.dry_run) {
    CheckFolder(plan, options.folder);
    result.bytes = total;
  } else {
    try {
      if (options.repair) {
        std::mutex mutex;
        Progress progress(mode, "checking", total, options.json);
        request.damage = FindRepairs(plan, options.folder, request.ranks, request.workers.jobs,
                                     [&](int64_t bytes, int64_t) {
                                       const std::lock_guard lock(mutex);
                                       progress.Update(bytes, "");
                                     });
      }
      Progress progress(mode, "writing", total, options.json);
      request.progress = [&](const WorkCounters& c, int64_t done, int64_t ranks) {
        progress.Update(c.written_bytes,
                        ranks > 1 ? fmt::format("rank {} of {}", done, ranks) : "");
      };
      result = Generate(plan, request, &counters);
    } catch (const Interrupted&) {
      Talk(
          "shardinit: interrupted; ranks that are done stay, and the same command makes the "
          "rest\n");
      throw;
    }
  }
  const double seconds = std::chrono::duration<double>(since_start()).count();
  if (options.json) {
    PrintJson(options, plan, result, counters, plan_ns, seconds);
    if (options.stats) PrintStats(counters, plan_ns, seconds);
    return ExitCode::kOk;
  }
  if (options.dry_run) {
    Print(fmt::format("would write {} of {} for {} of {} to {}\n", InBytes(total), plan.graph.name,
                      request.ranks.size(), Count(plan.world_size(), "rank"),
                      Escape(options.folder)));
    return ExitCode::kOk;
  }
  if (options.stats) PrintStats(counters, plan_ns, seconds);
  if (result.written > 0) {
    Talk(fmt::format("shardinit: wrote {} in {:.2f} s ({:.2f} GB/s)\n", InBytes(result.bytes),
                     seconds, static_cast<double>(result.bytes) / seconds / 1e9));
  }
  if (result.skipped > 0) {
    Talk(fmt::format("shardinit: {} of {} {} there already\n", result.skipped,
                     Count(static_cast<int64_t>(request.ranks.size()), "rank"),
                     result.skipped == 1 ? "was" : "were"));
  }
  if (result.complete) {
    Print(fmt::format("{}: {}, {}, complete\n", Escape(options.folder),
                      Count(plan.parameters, "parameter"), Count(plan.world_size(), "rank")));
  } else {
    Print(fmt::format("{0}: unfinished: other ranks are missing; see `shardinit status {0}`\n",
                      Escape(options.folder)));
  }
  return ExitCode::kOk;
}

}  // namespace

extern const Command kGen = {
    .name = "gen",
    .summary = "Generate a checkpoint, or some ranks of it",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<GenOptions>();
      options->spec.AddTo(app);
      options->spec.AddLayoutTo(app);
      app.add_option("-o,--output", options->folder, "Folder of the checkpoint")
          ->required()
          ->type_name("DIR")
          ->check(NotEmpty);
      AddRanks(app, &options->ranks);
      options->spec.AddReplicasTo(app);
      AddIndex(app, &options->index);
      options->work.AddJobsTo(app, "generate");
      options->work.AddMemoryTo(app);
      options->work.AddProgressTo(app);
      app.add_flag("--repair", options->repair,
                   "Check every byte of what is there, and make again what is damaged");
      app.add_flag("--dry-run", options->dry_run, "Check the spec and the folder, write nothing");
      app.add_flag("--stats", options->stats, "Show time and bytes of each stage");
      AddJson(app, &options->json);
      return [options] { return RunGen(*options); };
    },
};

}  // namespace shardinit
