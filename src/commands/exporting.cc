#include "commands/exporting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/reshard.h"
#include "commands/command.h"
#include "place/place.h"
#include "report/text.h"

namespace shardinit {
namespace {

Error NotFor(std::string_view format, std::string_view flag,
             const std::vector<std::string>& others) {
  return Error(ExitCode::kUsage,
               fmt::format("`{}` does not apply to the format `{}`", flag, format),
               fmt::format("leave it out; it is for {}", fmt::join(others, " and ")));
}

// Returns the names of formats, including kOwnFormat if `has_own`.
std::vector<std::string> NamesOfFormats(bool has_own) {
  std::vector<std::string> names = FormatNames();
  if (has_own) names.push_back(kOwnFormat);
  return names;
}

struct Written {
  ExportResult result;
  int64_t bytes = 0;  // written by this process
  bool is_complete = true;
  bool is_nothing = false;  // The request existed, but the model is incomplete.
};

void PrintWritten(const ExportingOptions& options, const Plan& plan, const Written& written,
                  bool is_shared, double seconds) {
  const ExportResult& result = written.result;
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", plan.graph.name);
    out.Member("folder", options.folder).Member("format", options.format);
    out.Member("tensors", result.tensors).Member("files", result.files);
    out.Member("bytes", result.bytes).Member("was_there", result.was_there);
    if (is_shared && options.is_own()) out.Member("complete", written.is_complete);
    if (is_shared && !options.is_own()) out.Member("missing_ranks", result.missing);
    out.Member("seconds", seconds).EndObject();
    return Print(out.Finish());
  }
  TalkUnlessQuiet(
      result.was_there ? fmt::format("shardinit: `{}` was there already\n", Escape(options.folder))
      : written.is_nothing ? std::string("shardinit: nothing was left to write for these ranks\n")
                           : fmt::format("shardinit: wrote {}\n", InSpeed(written.bytes, seconds)));
  const std::string folder = Escape(options.folder);
  if (written.is_complete) {
    PrintUnlessQuiet(fmt::format("{}: {} of {} in {}, {}\n", folder,
                                 Count(result.tensors, "tensor"), plan.graph.name,
                                 Count(result.files, "file"), options.format));
  } else if (result.missing.empty()) {
    PrintUnlessQuiet(fmt::format("{}: unfinished: other ranks are missing\n", folder));
  } else {
    PrintUnlessQuiet(fmt::format("{}: unfinished: {} {} missing, the first is {}\n", folder,
                                 Count(std::ssize(result.missing), "rank"),
                                 result.missing.size() == 1 ? "is" : "are",
                                 result.missing.front()));
  }
}

}  // namespace

Error NotForFormat(std::string_view flag, const Format& format,
                   const std::vector<std::string>& others) {
  return NotFor(format.name, flag, others);
}

void ExportingOptions::AddTo(CLI::App& app, bool may_be_own) {
  has_own = may_be_own;
  AddText(app, "--to", "FORMAT", &format,
          fmt::format("Format: {}", fmt::join(NamesOfFormats(has_own), ", ")))
      ->required();
  TakesBucket(AddText(app, "-o,--output", "DIR", &folder, "Folder to create"))->required();
}

void ExportingOptions::AddWorkTo(CLI::App& app, const char* what_jobs_do) {
  for (const FormatOption* option : FormatOptions()) {
    AddText(app, std::string(option->flag), "SIZE", &of_format[option],
            fmt::format("{}: {}; default {}", fmt::join(FormatsWith(*option), ", "), option->help,
                        option->default_text));
  }
  work.AddJobsTo(app, what_jobs_do);
  work.AddMemoryTo(app);
  work.AddProgressTo(app);
  AddJson(app, &json);
}

ExportRequest ExportingOptions::Request() const {
  ExportRequest request;
  request.format = FindFormat(format);
  if (request.format == nullptr && !(has_own && is_own())) {
    const std::vector<std::string> names = NamesOfFormats(has_own);
    const std::string closest = Closest(format, names);
    throw Error(ExitCode::kUsage, fmt::format("unknown format `{}`", format),
                closest.empty() ? fmt::format("use one of: {}", fmt::join(names, ", "))
                                : fmt::format("did you mean `{}`?", closest));
  }
  request.folder = folder;
  for (const FormatOption* option : FormatOptions()) {
    const std::string& text = of_format.at(option);
    if (request.format != nullptr && Contains(request.format->options, option)) {
      request.options[option] =
          ParseSize(option->flag, text.empty() ? std::string(option->default_text) : text, 1);
    } else if (!text.empty()) {
      throw NotFor(format, option->flag, FormatsWith(*option));
    }
  }
  request.workers = work.Workers(true);
  return request;
}

void SelectRanks(const RankOptions& options, const Plan& plan, ExportRequest* request) {
  // For a checkpoint, a part selects some of its ranks.
  if (request->format != nullptr) request->part = options.FindPart();
  if (!request->part) request->ranks = options.SelectedRanks(plan);
}

namespace {

Written WriteCheckpoint(const ExportingOptions& options, const Plan& plan,
                        const ExportRequest& request, FolderCopy* copy, WorkCounters* counters) {
  const GenerateResult made = Reshard(
      plan,
      {.copy = copy,
       .folder = request.folder,
       .workers = request.workers,
       .ranks = request.ranks,
       .claim = request.claim,
       .progress = options.work.Mode(),
       .is_quiet = options.json,
       .warn = [](const std::string& s) { Talk(fmt::format("shardinit: {}\n", Escape(s))); }},
      counters);
  Written written = {.result = {.tensors = std::ssize(plan.graph.tensors),
                                .files = plan.world_size(),
                                .bytes = plan.bytes},
                     .bytes = made.bytes,
                     .is_complete = made.complete};
  // A rank may hold nothing, but its file is written anyway.
  written.result.was_there = made.written == 0 && made.complete;
  written.is_nothing = made.written == 0 && !made.complete;
  return written;
}

Written WriteExport(const ExportingOptions& options, const Plan& plan, ExportRequest request,
                    WorkCounters* counters) {
  std::optional<Progress> progress;
  request.progress = [&](const WorkCounters& c, int64_t total) {
    if (!progress) progress.emplace(options.work.Mode(), "writing", total, options.json);
    progress->Update(c.written_bytes);
  };
  try {
    ExportResult result = Export(plan, request, counters);
    const bool is_complete = result.missing.empty();
    return {.result = result, .bytes = result.bytes, .is_complete = is_complete};
  } catch (const Interrupted&) {
    // A folder is named only when complete, so nothing of it stays.
    if (!Place::TraitsAt(options.folder).removes) {
      Talk(
          "shardinit: interrupted; finished files are kept, and the same command writes the "
          "rest\n");
    }
    throw;
  }
}

// Reports the changed elements, and how many cannot be restored.
void ReportConversionCounts(const ConversionCounts& losses) {
  if (losses.changed == 0) return;
  Talk(
      fmt::format("shardinit: {} changed to the convention of the layout's trainer; {} of these "
                  "cannot be restored exactly\n",
                  Count(losses.changed, "element"), Grouped(losses.lost)));
}

}  // namespace

ExitCode RunExporting(const ExportingOptions& options, const Plan& plan, ExportRequest request,
                      FolderCopy* copy) {
  const Stopwatch time;
  WorkCounters counters;
  const bool is_shared = request.is_shared();
  if (copy != nullptr) request.source = copy;
  const Written written = request.format == nullptr
                              ? WriteCheckpoint(options, plan, request, copy, &counters)
                              : WriteExport(options, plan, std::move(request), &counters);
  if (copy != nullptr) ReportConversionCounts(copy->losses());
  PrintWritten(options, plan, written, is_shared, time.seconds());
  return ExitCode::kOk;
}

}  // namespace shardinit
