#include "export/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "checkpoint/copy.h"
#include "checkpoint/folder.h"
#include "commands/command.h"
#include "commands/exporting.h"
#include "commands/folders.h"
#include "commands/options.h"

namespace shardinit {
namespace {

struct ExportOptions {
  explicit ExportOptions(CLI::App& app) {
    TakesUrl(spec.AddTo(app, "Model spec, `-` for standard input, or a folder of tensors"));
    spec.AddLayoutTo(app);
    exporting.AddTo(app);
    AddOnly(app, &only);
    AddPartOfFile(app, &part);
    AddRanks(app, &ranks);
    AddText(app, "--optimizer", "FILE|WORD", &optimizer,
            fmt::format("{}: also the state of an optimizer at step 0: adamw",
                        fmt::join(FormatsWithOptimizers(), ", ")));
    exporting.AddWorkTo(app, "generate");
  }

  SpecOptions spec;
  ExportingOptions exporting;
  RankOptions ranks;
  std::string only, part, optimizer;
};

// Reads the requested optimizer, if any.
std::optional<OptimizerSpec> OptimizerOf(const ExportOptions& options, const Format& format,
                                         Diagnostics& diagnostics) {
  if (options.optimizer.empty()) return {};
  if (!format.has_optimizers) throw NotForFormat("--optimizer", format, FormatsWithOptimizers());
  OptimizerSpec optimizer = ReadOptimizer(options.optimizer, diagnostics);
  diagnostics.ThrowIfErrors();
  return optimizer;
}

ExitCode RunExport(const ExportOptions& options) {
  RequireFolderName(options.exporting.folder);
  ExportRequest request = options.exporting.Request();
  request.only = options.only;
  Diagnostics diagnostics;
  std::optional<OptimizerSpec> optimizer = OptimizerOf(options, *request.format, diagnostics);
  std::optional<TensorFolder> folder;
  std::optional<FolderCopy> copy;
  if (MayHoldTensors(options.spec.request.path)) {
    RequireNoOverrides(options.spec);
    folder.emplace(OpenToCopy(
        {.from = options.spec.request.path, .to = options.exporting.folder, .part = options.part}));
    copy.emplace(*folder, folder->plan());
    request.source = &*copy;
    request.claim = ClaimOf(*folder);
  } else {
    RequireNoPart(options.part, options.spec.request.path);
  }
  const Plan loaded = folder ? Plan() : options.spec.LoadToMake();
  const Plan& plan = folder ? folder->plan() : loaded;
  if (optimizer) {
    request.optimizer = BindOptimizer(*std::move(optimizer), plan.graph, diagnostics);
    diagnostics.ThrowIfErrors();
  }
  SelectRanks(options.ranks, plan, &request);
  return RunExporting(options.exporting, plan, std::move(request), copy ? &*copy : nullptr);
}

}  // namespace

extern const Command kExport = {"export", "Write a model in a format that other trainers read",
                                Configure<RunExport>};

}  // namespace shardinit
