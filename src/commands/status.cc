#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <thread>

#include "base/colour.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "place/place.h"
#include "plan/part.h"
#include "plan/relayout.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr size_t kMostRanges = 1000;  // for people
constexpr size_t kMostStuck = 5;      // for people

std::string IsSeconds(const std::string& text) {
  constexpr double kMost = 1e9;
  const auto seconds = ParseNumber<double>(text);
  return seconds && *seconds > 0 && *seconds <= kMost
             ? std::string()
             : fmt::format("`{}`: use a number of seconds above 0, up to {:.0f}", text, kMost);
}

struct StatusOptions {
  explicit StatusOptions(CLI::App& app) {
    TakesBucket(app.add_option("DIR", folder, "Folder of the checkpoint"))->required();
    app.add_option("--missing-parts", parts,
                   "Only print which of N parts (of `gen --part`) lack a rank")
        ->type_name("N");
    app.add_flag("--watch", watch, "Repeat until the checkpoint is complete");
    app.add_option("--every", every, "With --watch: the pause before each repetition; default 10")
        ->type_name("SECONDS")
        ->check(IsSeconds);
    app.add_option("--stuck", stuck,
                   "Time without writes after which a rank counts as stuck; default 300")
        ->type_name("SECONDS")
        ->check(IsSeconds);
    app.add_flag("--prometheus", prometheus, "Print metrics for Prometheus");
    AddJson(app, &json);
  }

  std::string folder;
  std::optional<int64_t> parts;  // of --missing-parts
  double every = 10, stuck = 300;
  bool watch = false, prometheus = false, json = false;
};

// A rank whose file has a temporary name: a run is writing it, or was killed while writing it.
struct UnfinishedRank {
  int64_t rank;
  double written;  // last write to the file, in seconds since 1970
  double age;      // seconds since that write
};

// The state of the folder at one look.
struct FolderState {
  std::vector<int64_t> missing, parts;  // parts that lack a rank
  int64_t bytes_done;
  bool has_manifest, complete;
  std::vector<UnfinishedRank> unfinished;  // ascending
  // Set by --watch, once something was finished between two looks.
  std::optional<double> bytes_per_second = {}, seconds_left = {};
};

// A checkpoint in progress.
struct WatchedCheckpoint {
  const StatusOptions& options;
  const Plan& plan;
  const Digest& plan_sha256;
  const int64_t bytes = BytesInFiles(plan);
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

// Finds the missing ranks with a temporary file. Of several such files, uses the latest.
std::vector<UnfinishedRank> FindUnfinished(const Folder& ranks,
                                           const std::vector<int64_t>& missing) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::map<int64_t, UnfinishedRank> found;
  ranks.ForEachName([&](const std::string& name) {
    const std::string_view file = NameOfTemporary(name);
    const size_t digits = std::min(file.find_first_of("0123456789"), file.size());
    const size_t end = std::min(file.find_first_not_of("0123456789", digits), file.size());
    const auto rank = ParseNumber<int64_t>(file.substr(digits, end - digits));
    struct stat info;
    if (!rank || shardinit::NameOf(RankFile(*rank)) != file ||
        !std::binary_search(missing.begin(), missing.end(), *rank) || !ranks.Look(name, &info)) {
      return;
    }
    const double written =
        static_cast<double>(info.st_mtim.tv_sec) + static_cast<double>(info.st_mtim.tv_nsec) / 1e9;
    // The clock of a file server may be ahead.
    const UnfinishedRank of_file = {*rank, written, std::max(0.0, now.count() - written)};
    const auto [it, is_new] = found.try_emplace(*rank, of_file);
    if (!is_new && written > it->second.written) it->second = of_file;
  });
  std::vector<UnfinishedRank> unfinished;
  for (const auto& [rank, of_file] : found) unfinished.push_back(of_file);
  return unfinished;
}

// Returns the bytes of the finished ranks. Sums the finished or the missing ones, whichever are
// fewer: there may be millions.
int64_t BytesDone(const WatchedCheckpoint& watched, const std::vector<int64_t>& missing) {
  const int64_t ranks = watched.plan.world_size();
  if (missing.empty()) return watched.bytes;
  if (std::ssize(missing) <= ranks / 2) return watched.bytes - BytesIn(watched.plan, missing);
  std::vector<int64_t> done;
  auto next = missing.begin();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (next != missing.end() && *next == rank) {
      ++next;
    } else {
      done.push_back(rank);
    }
  }
  return done.empty() ? 0 : BytesIn(watched.plan, done);
}

FolderState ReadProgress(const WatchedCheckpoint& watched) {
  const Plan& plan = watched.plan;
  FolderState look;
  const std::string& folder = watched.options.folder;
  ExistingRanks there = LookForRanks(folder, plan, watched.plan_sha256);
  look.missing = std::move(there.missing);
  look.has_manifest = there.has_manifest;
  look.complete = look.has_manifest && look.missing.empty();
  look.bytes_done = BytesDone(watched, look.missing);
  if (watched.options.parts) {
    look.parts = MissingParts(plan, *watched.options.parts, look.missing);
  }
  // In a bucket, unfinished files are invisible.
  if (Place::TraitsAt(folder).is_remote) return look;
  const CheckpointFolder local(folder);
  if (local.ranks()) look.unfinished = FindUnfinished(local.ranks(), look.missing);
  return look;
}

std::vector<UnfinishedRank> StuckRanks(const FolderState& look, const StatusOptions& options) {
  std::vector<UnfinishedRank> stuck;
  for (const UnfinishedRank& rank : look.unfinished) {
    if (rank.age >= options.stuck) stuck.push_back(rank);
  }
  std::stable_sort(stuck.begin(), stuck.end(),
                   [](const auto& a, const auto& b) { return a.age > b.age; });
  return stuck;
}

std::string InJson(const WatchedCheckpoint& watched, const FolderState& look) {
  const StatusOptions& options = watched.options;
  const Plan& plan = watched.plan;
  JsonWriter out;
  // With --watch, each look is one line.
  out.BeginObject(options.watch ? JsonWriter::kInline : JsonWriter::kLines);
  out.Member("folder", options.folder);
  out.Member("name", plan.graph.name).Member("complete", look.complete);
  out.Member("world_size", plan.world_size());
  out.Member("ranks_done", plan.world_size() - std::ssize(look.missing));
  out.Member("missing_ranks", RanksInText(look.missing));
  if (options.parts) out.Member("missing_parts", RanksInText(look.parts));
  out.Member("bytes", watched.bytes).Member("bytes_done", look.bytes_done);
  const auto age = [](double seconds) { return std::round(seconds * 1000) / 1000; };
  out.Key("unfinished").BeginArray();
  for (const UnfinishedRank& rank : look.unfinished) {
    out.BeginObject().Member("rank", rank.rank).Member("age", age(rank.age)).EndObject();
  }
  out.EndArray().Key("stuck").BeginArray();
  for (const UnfinishedRank& rank : StuckRanks(look, options)) out.Value(rank.rank);
  out.EndArray();
  if (options.watch) {
    const auto member = [&](const char* name, const std::optional<double>& value) {
      out.MemberOrNull(name, value.has_value(), value.value_or(0));
    };
    member("bytes_per_second", look.bytes_per_second);
    member("seconds_left", look.seconds_left);
  }
  out.EndObject();
  return out.Finish();
}

// Returns the value of a label in Prometheus's text format, which is UTF-8. Escapes other bytes as
// in JSON.
std::string InLabel(std::string_view text) {
  std::string label;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    const std::string_view as_is = text.substr(at, static_cast<size_t>(character.size));
    at += as_is.size();
    if (!character.valid) {
      label += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(as_is[0]));
    } else if (as_is == "\n") {
      label += "\\n";
    } else {
      if (as_is == "\"" || as_is == "\\") label += '\\';
      label += as_is;
    }
  }
  return label;
}

std::string InMetrics(const WatchedCheckpoint& watched, const FolderState& look) {
  const Plan& plan = watched.plan;
  const std::string labels = fmt::format("folder=\"{}\",name=\"{}\"",
                                         InLabel(watched.options.folder), InLabel(plan.graph.name));
  std::string text;
  const auto begin = [&](std::string_view name, std::string_view help) {
    text += fmt::format("# HELP shardinit_{0} {1}\n# TYPE shardinit_{0} gauge\n", name, help);
  };
  const auto add = [&](std::string_view name, std::string_view help, int64_t value) {
    begin(name, help);
    text += fmt::format("shardinit_{}{{{}}} {}\n", name, labels, value);
  };
  add("ranks", "Ranks of the checkpoint.", plan.world_size());
  add("ranks_done", "Ranks whose files and receipts are there.",
      plan.world_size() - std::ssize(look.missing));
  add("bytes", "Bytes of tensors in all rank files.", watched.bytes);
  add("bytes_done", "Bytes of tensors in the files of ranks that are done.", look.bytes_done);
  add("complete", "1 if the checkpoint is complete, else 0.", look.complete ? 1 : 0);
  add("ranks_stuck", "Unfinished ranks without recent writes.",
      std::ssize(StuckRanks(look, watched.options)));
  begin("rank_written_timestamp_seconds",
        "Time of the last write to the file of an unfinished rank.");
  for (const UnfinishedRank& rank : look.unfinished) {
    text += fmt::format("shardinit_rank_written_timestamp_seconds{{{},rank=\"{}\"}} {:.3f}\n",
                        labels, rank.rank, rank.written);
  }
  return text;
}

// Returns `, 2 ranks are stuck: 17 since 12:03 min, 300 since 7:10 min`, or an empty text.
std::string StuckInText(const FolderState& look, const StatusOptions& options) {
  const std::vector<UnfinishedRank> stuck = StuckRanks(look, options);
  if (stuck.empty()) return {};
  std::string text = fmt::format("{} {} stuck:", Count(std::ssize(stuck), "rank"),
                                 stuck.size() == 1 ? "is" : "are");
  for (size_t i = 0; i < std::min(stuck.size(), kMostStuck); ++i) {
    text += fmt::format("{} {} since {}", i == 0 ? "" : ",", stuck[i].rank, InTime(stuck[i].age));
  }
  return text + (stuck.size() > kMostStuck ? ", …" : "");
}

std::string InText(const WatchedCheckpoint& watched, const FolderState& look) {
  const StatusOptions& options = watched.options;
  const Plan& plan = watched.plan;
  if (options.parts) return RanksInText(look.parts) + "\n";
  const int64_t done = plan.world_size() - std::ssize(look.missing);
  std::string text = fmt::format(
      "{}: {}: {} of {} {} there, {}\n", Escape(options.folder), plan.graph.name, Grouped(done),
      Count(plan.world_size(), "rank"), plan.world_size() == 1 ? "is" : "are",
      look.complete          ? "complete"
      : look.missing.empty() ? "not finalized: run `shardinit finalize`"
      : !look.has_manifest   ? "unfinished"
      : IsCopy(plan)         ? "damaged: it was complete; remove it, and copy again"
                             : "damaged: it was complete; run `gen` again");
  if (!look.missing.empty()) {
    const std::string ranks = RanksInText(look.missing, kMostRanges);
    text +=
        fmt::format("missing: {}{}\n", ranks, ranks.ends_with("…") ? " (`--json` has all)" : "");
  }
  if (const std::string stuck = StuckInText(look, options); !stuck.empty()) text += stuck + "\n";
  return text;
}

// Returns a --watch look as a line, without the newline.
std::string InLine(const WatchedCheckpoint& watched, const FolderState& look) {
  const int64_t ranks = watched.plan.world_size();
  std::string text =
      fmt::format("{} of {}, {} of {}", Grouped(ranks - std::ssize(look.missing)),
                  Count(ranks, "rank"), InBytes(look.bytes_done), InBytes(watched.bytes));
  if (look.bytes_per_second) text += fmt::format(", {:.2f} GB/s", *look.bytes_per_second / 1e9);
  if (look.seconds_left) text += fmt::format(", {} left", InTime(*look.seconds_left));
  if (look.complete) return text + ", complete";
  if (look.missing.empty()) return text + ", not finalized";
  const std::string stuck = StuckInText(look, watched.options);
  return stuck.empty() ? text : text + "; " + stuck;
}

// Waits. Throws early if a signal arrives.
void Pause(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  constexpr std::chrono::duration<double> kStep(0.1);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    ThrowIfInterrupted();
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(kStep, end - now));
  }
}

// Looks repeatedly until the checkpoint is complete.
void Watch(const StatusOptions& options, const Plan& plan, const Digest& plan_sha256) {
  // Ranks finish one by one, so the speed is averaged over a window, in seconds.
  constexpr double kWindow = 600;
  struct Sample {
    double seconds;
    int64_t bytes;
  };
  std::deque<Sample> past;
  const Stopwatch time;
  const bool repaints = !options.json && IsTerminal(Channel::kOutput);
  const WatchedCheckpoint watched = {options, plan, plan_sha256};
  while (true) {
    FolderState look = ReadProgress(watched);
    past.push_back({time.seconds(), look.bytes_done});
    while (past.size() > 2 && past[1].seconds < past.back().seconds - kWindow) past.pop_front();
    const int64_t bytes = past.back().bytes - past.front().bytes;
    if (bytes > 0) {
      look.bytes_per_second =
          static_cast<double>(bytes) / (past.back().seconds - past.front().seconds);
      look.seconds_left =
          static_cast<double>(watched.bytes - look.bytes_done) / *look.bytes_per_second;
    }
    if (options.json) {
      Print(InJson(watched, look));
    } else if (repaints && !look.complete) {
      Print(fmt::format("\r{}\x1b[K", InLine(watched, look)));
    } else {
      Print(fmt::format("{}{}{}\n", repaints ? "\r" : "", InLine(watched, look),
                        repaints ? "\x1b[K" : ""));
    }
    if (look.complete) return;
    Pause(options.every);
  }
}

void RunStatus(const StatusOptions& options) {
  if (options.parts) RequirePartCount("--missing-parts", *options.parts);
  if (options.prometheus && options.json) {
    throw Usage("`--prometheus` and `--json` exclude each other", "give one of them");
  }
  if (options.prometheus && options.watch) {
    throw Usage("`--prometheus` excludes `--watch`", "run it every minute, by cron or a timer");
  }
  if (options.parts && !options.json && (options.watch || options.prometheus)) {
    throw Usage("`--missing-parts` prints nothing but the parts",
                "leave `--watch` and `--prometheus` out, or add `--json` to `--watch`");
  }
  Digest plan_sha256;
  const Plan plan = LoadCheckpointPlan(options.folder, &plan_sha256);
  if (options.watch) return Watch(options, plan, plan_sha256);
  const WatchedCheckpoint watched = {options, plan, plan_sha256};
  const FolderState look = ReadProgress(watched);
  Print(options.json         ? InJson(watched, look)
        : options.prometheus ? InMetrics(watched, look)
                             : InText(watched, look));
}

}  // namespace

extern const Command kStatus = {"status", "Show which ranks of a checkpoint are there",
                                Configure<RunStatus>};

}  // namespace shardinit
