#include "commands/exporting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/suggest.h"
#include "base/talk.h"
#include "base/text.h"
#include "bucket/url.h"
#include "commands/command.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Throws Error (kUsage) if an option was given that the format does not have.
OptionValues ValuesFor(const Format& format,
                       const std::map<const FormatOption*, std::string>& given) {
  OptionValues values;
  for (const FormatOption* option : format.options) {
    const std::string& text = given.at(option);
    values[option] =
        ParseSize(option->flag, text.empty() ? std::string(option->default_text) : text, 1);
  }
  for (const auto& [option, text] : given) {
    if (text.empty() || values.count(option) != 0) continue;
    throw NotForFormat(option->flag, format, FormatsWith(*option));
  }
  return values;
}

void PrintExport(const ExportingOptions& options, const Plan& plan, const ExportResult& result,
                 bool is_shared, double seconds) {
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", plan.graph.name);
    out.Member("folder", options.folder).Member("format", options.format);
    out.Member("tensors", result.tensors).Member("files", result.files);
    out.Member("bytes", result.bytes).Member("was_there", result.was_there);
    if (is_shared) out.Member("missing_ranks", result.missing);
    out.Member("seconds", seconds).EndObject();
    return Print(out.Finish());
  }
  TalkUnlessQuiet(result.was_there
                      ? fmt::format("shardinit: `{}` was there already\n", Escape(options.folder))
                      : fmt::format("shardinit: wrote {}\n", InSpeed(result.bytes, seconds)));
  if (!result.missing.empty()) return PrintUnfinished(options.folder, result.missing);
  PrintUnlessQuiet(fmt::format("{}: {} of {} in {}, {}\n", Escape(options.folder),
                               Count(result.tensors, "tensor"), plan.graph.name,
                               Count(result.files, "file"), options.format));
}

}  // namespace

void PrintUnfinished(const std::string& folder, const std::vector<int64_t>& missing) {
  PrintUnlessQuiet(fmt::format("{}: unfinished: {} {} missing, the first is {}\n", Escape(folder),
                               Count(std::ssize(missing), "rank"),
                               missing.size() == 1 ? "is" : "are", missing.front()));
}

const Format* FormatOf(const std::string& name, std::vector<std::string> others) {
  if (const Format* format = FindFormat(name)) return format;
  std::vector<std::string> names = FormatNames();
  names.insert(names.end(), others.begin(), others.end());
  const std::string closest = Closest(name, names);
  throw Error(ExitCode::kUsage, fmt::format("unknown format `{}`", name),
              closest.empty() ? fmt::format("use one of: {}", fmt::join(names, ", "))
                              : fmt::format("did you mean `{}`?", closest));
}

Error NotForFormat(std::string_view flag, const Format& format,
                   const std::vector<std::string>& others) {
  return Error(ExitCode::kUsage, fmt::format("`{}` is not for the format `{}`", flag, format.name),
               fmt::format("leave it out; it is for {}", fmt::join(others, " and ")));
}

void ExportingOptions::AddTo(CLI::App& app, const std::vector<std::string>& others) {
  std::vector<std::string> names = FormatNames();
  names.insert(names.end(), others.begin(), others.end());
  AddText(app, "--to", "FORMAT", &format, fmt::format("Format: {}", fmt::join(names, ", ")))
      ->required();
  TakesUrl(AddText(app, "-o,--output", "DIR", &folder, "Folder to make"))->required();
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
  request.format = FormatOf(format);
  request.folder = folder;
  request.options = ValuesFor(*request.format, of_format);
  request.workers = work.Workers(true);
  return request;
}

void AskFor(const RankOptions& options, const Plan& plan, ExportRequest* request) {
  request->part = options.FindPart();
  if (!request->part) request->ranks = options.Some(plan);
}

ExitCode RunExporting(const ExportingOptions& options, const Plan& plan, ExportRequest request) {
  const Stopwatch time;
  const ProgressMode mode = options.work.Mode();
  WorkCounters counters;
  ExportResult result;
  {
    std::optional<Progress> progress;
    request.progress = [&](const WorkCounters& c, int64_t total) {
      if (!progress) progress.emplace(mode, "writing", total, options.json);
      progress->Update(c.written_bytes);
    };
    try {
      result = Export(plan, request, &counters);
    } catch (const Interrupted&) {
      if (IsBucketUrl(options.folder)) {
        Talk(
            "shardinit: interrupted; files that are done stay, and the same command makes the "
            "rest\n");
      }
      throw;
    }
  }
  PrintExport(options, plan, result, request.is_shared(), time.seconds());
  return ExitCode::kOk;
}

}  // namespace shardinit
