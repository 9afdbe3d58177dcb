#include "export/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "base/suggest.h"
#include "base/talk.h"
#include "base/text.h"
#include "checkpoint/copy.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct ExportOptions {
  explicit ExportOptions(CLI::App& app) {
    spec.AddTo(app, "Model spec, `-` for standard input, or a checkpoint's folder");
    spec.AddLayoutTo(app);
    AddText(app, "--to", "FORMAT", &format,
            fmt::format("Format: {}", fmt::join(FormatNames(), ", ")))
        ->required();
    AddText(app, "-o,--output", "DIR", &folder, "Folder to make")->required();
    AddOnly(app, &only);
    AddText(app, "--optimizer", "FILE|WORD", &optimizer,
            fmt::format("{}: also the state of an optimizer at step 0: adamw",
                        fmt::join(FormatsWithOptimizers(), ", ")));
    for (const FormatOption* option : FormatOptions()) {
      AddText(app, std::string(option->flag), "SIZE", &of_format[option],
              fmt::format("{}: {}; default {}", fmt::join(FormatsWith(*option), ", "), option->help,
                          option->default_text));
    }
    work.AddJobsTo(app, "generate");
    work.AddMemoryTo(app);
    work.AddProgressTo(app);
    AddJson(app, &json);
  }

  SpecOptions spec;
  WorkOptions work;
  std::string format, folder, only, optimizer;
  std::map<const FormatOption*, std::string> of_format;  // as given
  bool json = false;
};

const Format* FormatOf(const std::string& name) {
  if (const Format* format = FindFormat(name)) return format;
  const auto names = FormatNames();
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

// Throws Error (kUsage) if an option was given that the format does not have.
OptionValues OptionsOf(const Format& format,
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

// Loads the plan of a checkpoint, with its devices.
Plan LoadPlanOf(const ExportOptions& options, Digest* plan_sha256) {
  const std::string& folder = options.spec.request.path;
  if (options.spec.HasOverrides()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is a checkpoint, whose values are fixed", folder),
                "`--set`, `--mesh`, `--sharding` and `--layout` are for specs");
  }
  Plan plan = LoadCheckpointPlan(folder, plan_sha256);
  RequireOutside(options.folder, folder);
  LoadDevices(CheckpointFolder(folder), &plan);
  return plan;
}

// Reads the optimizer that was asked for, if any.
std::optional<OptimizerSpec> OptimizerOf(const ExportOptions& options, const Format& format,
                                         Diagnostics& diagnostics) {
  if (options.optimizer.empty()) return {};
  if (!format.has_optimizers) throw NotForFormat("--optimizer", format, FormatsWithOptimizers());
  OptimizerSpec optimizer = ReadOptimizer(options.optimizer, diagnostics);
  diagnostics.ThrowIfErrors();
  return optimizer;
}

void PrintExport(const ExportOptions& options, const Plan& plan, const ExportResult& result,
                 double seconds) {
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", plan.graph.name);
    out.Member("folder", options.folder).Member("format", options.format);
    out.Member("tensors", result.tensors).Member("files", result.files);
    out.Member("bytes", result.bytes).Member("was_there", result.was_there);
    out.Member("seconds", seconds).EndObject();
    return Print(out.Finish());
  }
  TalkUnlessQuiet(result.was_there
                      ? fmt::format("shardinit: `{}` was there already\n", Escape(options.folder))
                      : fmt::format("shardinit: wrote {}\n", InSpeed(result.bytes, seconds)));
  PrintUnlessQuiet(fmt::format("{}: {} of {} in {}, {}\n", Escape(options.folder),
                               Count(result.tensors, "tensor"), plan.graph.name,
                               Count(result.files, "file"), options.format));
}

ExitCode RunExport(const ExportOptions& options) {
  const Stopwatch time;
  RequireFolderName(options.folder);
  ExportRequest request;
  request.format = FormatOf(options.format);
  request.folder = options.folder;
  request.only = options.only;
  request.options = OptionsOf(*request.format, options.of_format);
  request.workers = options.work.Workers(true);
  Diagnostics diagnostics;
  std::optional<OptimizerSpec> optimizer = OptimizerOf(options, *request.format, diagnostics);
  const ProgressMode mode = options.work.Mode();
  const bool is_folder = IsFolder(options.spec.request.path);
  Digest plan_sha256{};
  const Plan plan = is_folder ? LoadPlanOf(options, &plan_sha256) : options.spec.Load();
  std::optional<CheckpointCopy> checkpoint;
  if (is_folder) {
    checkpoint.emplace(options.spec.request.path, plan, plan_sha256, plan);
    request.source = &*checkpoint;
  }
  if (optimizer) {
    request.optimizer = BindOptimizer(*std::move(optimizer), plan.graph, diagnostics);
    diagnostics.ThrowIfErrors();
  }
  WorkCounters counters;
  ExportResult result;
  {
    std::optional<Progress> progress;
    request.progress = [&](const WorkCounters& c, int64_t total) {
      if (!progress) progress.emplace(mode, "writing", total, options.json);
      progress->Update(c.written_bytes);
    };
    result = Export(plan, request, &counters);
  }
  PrintExport(options, plan, result, time.seconds());
  return ExitCode::kOk;
}

}  // namespace

extern const Command kExport = {"export", "Write a model in a format that other trainers read",
                                Configure<RunExport>};

}  // namespace shardinit
