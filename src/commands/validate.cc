#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct Options {
  std::vector<std::string> specs;
  SpecOptions spec;  // Without its path.
  bool json = false;
};

void WriteDiagnostics(const std::vector<Diagnostic>& diagnostics, JsonWriter& out) {
  static constexpr const char* kSeverities[] = {"note", "warning", "error"};
  out.Key("diagnostics").BeginArray(JsonWriter::kLines);
  for (const Diagnostic& d : diagnostics) {
    out.BeginObject().Member("severity", kSeverities[static_cast<int>(d.severity)]);
    if (d.span.source != nullptr) {
      out.Member("file", d.span.source->name).Member("line", d.span.line);
      out.Member("column", d.span.column).Member("length", d.span.length);
    }
    out.Member("message", d.message);
    if (!d.hint.empty()) out.Member("hint", d.hint);
    out.EndObject();
  }
  out.EndArray();
}

ExitCode Run(const Options& options) {
  bool valid = true;
  JsonWriter out;
  out.BeginArray(JsonWriter::kLines);
  for (const std::string& path : options.specs) {
    Diagnostics diagnostics;
    std::vector<Diagnostic> all;
    out.BeginObject().Member("spec", path);
    try {
      PlanRequest request{options.spec.request, {}};
      request.spec.path = path;
      const Plan plan = LoadPlan(request, diagnostics);
      all = diagnostics.all();
      out.Member("valid", true).Member("name", plan.graph.name);
      if (!options.json) {
        Print(fmt::format("{}: valid: {}, {} tensors, {} parameters, {} ranks\n", Printable(path),
                          plan.graph.name, Grouped(static_cast<int64_t>(plan.graph.tensors.size())),
                          Grouped(plan.parameters), Grouped(plan.world_size())));
      }
      WriteDiagnostics(all, out);
      fmt::print(stderr, "{}", Render(all));
    } catch (const InvalidSpec& e) {
      valid = false;
      out.Member("valid", false);
      WriteDiagnostics(e.diagnostics(), out);
      fmt::print(stderr, "{}", Render(e.diagnostics()));
    }
    out.EndObject();
  }
  out.EndArray();
  if (options.json) Print(out.Finish());
  return valid ? ExitCode::kOk : ExitCode::kUsage;
}

}  // namespace

extern const Command kValidate = {
    .name = "validate",
    .summary = "Check specs, reporting every mistake with its place",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<Options>();
      app.add_option("SPEC", options->specs, "Model specs")->required();
      options->spec.AddOverridesTo(app);
      AddJson(app, &options->json);
      return [options] { return Run(*options); };
    },
};

}  // namespace shardinit
