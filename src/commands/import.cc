#include <fmt/format.h>

#include <memory>

#include "base/result_file.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"
#include "spec/include.h"
#include "spec/write.h"

namespace shardinit {
namespace {

struct ImportOptions {
  std::string config, output = "-";
  bool force = false;
};

constexpr std::string_view kHeading = "# shardinit import ";

ExitCode RunImport(const ImportOptions& options) {
  NodeStore store;
  Diagnostics diagnostics;
  const Node* spec = LoadConfigJson(options.config, store, diagnostics);
  diagnostics.ThrowIfErrors();
  Check(spec != nullptr, "a config.json without a mistake is a spec");
  const bool printed = options.output == "-";
  const std::string text =
      fmt::format("{}{}\n{}", kHeading, Escape(options.config), WriteYaml(*spec));
  // The text is read back, so the output is sure to be a spec.
  SpecRequest request{printed ? "<stdout>" : options.output, {}, {}};
  request.text = text;
  const Plan plan = LoadPlan({request, {}, {}}, diagnostics);
  if (printed) {
    Print(text);
    return ExitCode::kOk;
  }
  const ResultFile output({"-o", "spec", {kHeading, "\nshardinit: 1\n"}}, options.output,
                          options.force);
  output.Write(text);
  if (output.IsStandardOutput()) return ExitCode::kOk;
  Print(fmt::format("{}: {}, {}, {}\n", Escape(options.output), plan.graph.name,
                    Count(static_cast<int64_t>(plan.graph.tensors.size()), "tensor"),
                    Count(plan.parameters, "parameter")));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kImport = {
    .name = "import",
    .summary = "Make a spec from a config.json of Hugging Face Transformers",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<ImportOptions>();
      app.add_option("CONFIG", options->config, "A config.json, or `-` for standard input")
          ->required();
      AddText(app, "-o,--output", "FILE", &options->output, "The spec; default: standard output");
      AddForce(app, &options->force);
      return [options] { return RunImport(*options); };
    },
};

}  // namespace shardinit
