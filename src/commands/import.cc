#include <fmt/format.h>

#include "base/result_file.h"
#include "base/talk.h"
#include "base/text.h"
#include "bucket/url.h"
#include "commands/command.h"
#include "commands/options.h"
#include "formats/input.h"
#include "report/text.h"
#include "spec/include.h"
#include "spec/write.h"

namespace shardinit {
namespace {

struct ImportOptions {
  explicit ImportOptions(CLI::App& app) {
    TakesUrl(
        app.add_option("CONFIG", config,
                       "A config.json, its folder or the URL of either, or `-` for standard input"))
        ->required();
    AddText(app, "-o,--output", "FILE", &output, "The spec; default: standard output");
    AddForce(app, &force);
  }

  std::string config, output = "-";
  bool force = false;
};

constexpr std::string_view kHeading = "# shardinit import ";

void RunImport(const ImportOptions& options) {
  NodeStore store;
  Diagnostics diagnostics;
  const std::string config = options.config != "-" && IsInputFolder(options.config)
                                 ? options.config + "/config.json"
                                 : options.config;
  std::optional<std::string> text_of_url;
  if (IsUrl(config)) text_of_url = ReadInput(config, kLargestYaml);
  FieldDefaults defaults;
  const Node* spec = LoadConfigJson(config, text_of_url, store, diagnostics, defaults);
  diagnostics.ThrowIfErrors();
  Check(spec != nullptr, "a config.json without a mistake is a spec");
  const bool printed = options.output == "-";
  std::string taken;
  for (const auto& [field, value] : defaults)
    taken += fmt::format("{}{}: {}", taken.empty() ? "" : ", ", field, value);
  if (!taken.empty()) taken = fmt::format("defaults of Transformers: {}\n", taken);
  const std::string text = fmt::format("{}{}\n{}{}{}", kHeading, Escape(config),
                                       taken.empty() ? "" : "# ", taken, WriteYaml(*spec));
  // Load the output: it must be a valid spec.
  SpecRequest request{printed ? "<stdout>" : options.output, {}, {}};
  request.text = text;
  const Plan plan = LoadPlan({request, {}, {}}, diagnostics);
  Talk(Render(diagnostics.all()));
  if (printed) return PrintExactly(text);
  const ResultFile output({"-o", "spec", {kHeading, "\nshardinit: 1\n"}}, options.output,
                          options.force);
  output.Write(text);
  if (output.IsStandardOutput()) return;
  PrintUnlessQuiet(fmt::format("{}: {}, {}, {}\n{}", Escape(options.output), plan.graph.name,
                               Count(std::ssize(plan.graph.tensors), "tensor"),
                               Count(plan.parameters, "parameter"), taken));
}

}  // namespace

extern const Command kImport = {"import",
                                "Create a spec from a config.json of Hugging Face Transformers",
                                Configure<RunImport>};

}  // namespace shardinit
