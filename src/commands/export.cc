#include "export/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>
#include <memory>
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
  if (!options.spec.request.sets.empty() || !options.spec.request.mesh.empty() ||
      !options.spec.layout.empty()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is a checkpoint, whose values are what they are", folder),
                "`--set`, `--mesh` and `--layout` are for specs");
  }
  Plan plan = LoadCheckpointPlan(folder, plan_sha256);
  RequireOutside(options.folder, folder);
  LoadDevices(CheckpointFolder(folder), &plan);
  return plan;
}

ExitCode RunExport(const ExportOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ExportRequest request;
  request.format = FormatOf(options.format);
  request.folder = options.folder;
  request.only = options.only;
  request.options = OptionsOf(*request.format, options.of_format);
  request.workers = options.work.Workers(true);
  Diagnostics diagnostics;
  std::optional<OptimizerSpec> optimizer;
  if (!options.optimizer.empty()) {
    if (!request.format->has_optimizers) {
      throw NotForFormat("--optimizer", *request.format, FormatsWithOptimizers());
    }
    optimizer = ReadOptimizer(options.optimizer, diagnostics);
    diagnostics.ThrowIfErrors();
  }
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
      progress->Update(c.written_bytes, "");
    };
    result = Export(plan, request, &counters);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("name", plan.graph.name);
    out.Member("folder", options.folder).Member("format", request.format->name);
    out.Member("tensors", result.tensors).Member("files", result.files);
    out.Member("bytes", result.bytes).Member("was_there", result.was_there);
    out.Member("seconds", seconds).EndObject();
    Print(out.Finish());
    return ExitCode::kOk;
  }
  if (result.was_there) {
    Talk(fmt::format("shardinit: `{}` was there already\n", Escape(options.folder)));
  } else {
    Talk(fmt::format("shardinit: wrote {} in {:.2f} s ({:.2f} GB/s)\n", InBytes(result.bytes),
                     seconds, static_cast<double>(result.bytes) / seconds / 1e9));
  }
  Print(fmt::format("{}: {} of {} in {}, {}\n", Escape(options.folder),
                    Count(result.tensors, "tensor"), plan.graph.name, Count(result.files, "file"),
                    request.format->name));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kExport = {
    .name = "export",
    .summary = "Write a model in a format that other trainers read",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<ExportOptions>();
      options->spec.AddTo(app, "Model spec, `-` for standard input, or a checkpoint's folder");
      options->spec.AddLayoutTo(app);
      app.add_option("--to", options->format,
                     fmt::format("Format: {}", fmt::join(FormatNames(), ", ")))
          ->required()
          ->type_name("FORMAT")
          ->check(NotEmpty);
      app.add_option("-o,--output", options->folder, "Folder to make")
          ->required()
          ->type_name("DIR")
          ->check(NotEmpty);
      app.add_option("--only", options->only,
                     "Only tensors whose path matches, as in '*.norm.weight'")
          ->type_name("GLOB")
          ->check(NotEmpty);
      app.add_option("--optimizer", options->optimizer,
                     fmt::format("{}: also the state of an optimizer at step 0: adamw",
                                 fmt::join(FormatsWithOptimizers(), ", ")))
          ->type_name("FILE|WORD")
          ->check(NotEmpty);
      for (const FormatOption* option : FormatOptions()) {
        app.add_option(std::string(option->flag), options->of_format[option],
                       fmt::format("{}: {}; default {}", fmt::join(FormatsWith(*option), ", "),
                                   option->help, option->default_text))
            ->type_name("SIZE")
            ->check(NotEmpty);
      }
      options->work.AddJobsTo(app, "generate");
      options->work.AddMemoryTo(app);
      options->work.AddProgressTo(app);
      AddJson(app, &options->json);
      return [options] { return RunExport(*options); };
    },
};

}  // namespace shardinit
