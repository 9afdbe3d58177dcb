#include <fmt/format.h>

#include "base/checked_file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/source.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct ValidateOptions {
  explicit ValidateOptions(CLI::App& app) {
    app.add_option("SPEC", specs, "Model specs or config.json, or `-` for standard input")
        ->required();
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app);
    AddJson(app, &json);
  }

  std::vector<std::string> specs;
  SpecOptions spec;  // without its path
  bool json = false;
};

void WriteDiagnostics(const std::vector<Diagnostic>& diagnostics, JsonWriter& out) {
  out.Key("diagnostics").BeginArray(JsonWriter::kLines);
  for (const Diagnostic& d : diagnostics) {
    out.BeginObject().Member("severity", NameOf(d.severity));
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

std::string RenderAll(const std::vector<Diagnostic>& diagnostics) {
  constexpr size_t kMostErrors = 20;  // More errors add little, unlike warnings.
  return Render(diagnostics, kMostErrors, kMostRows);
}

ExitCode RunValidate(const ValidateOptions& options) {
  bool valid = true;
  JsonWriter out;
  out.BeginArray(JsonWriter::kLines);
  for (const std::string& path : options.specs) {
    Diagnostics diagnostics;
    std::vector<Diagnostic> all;
    out.BeginObject().Member("spec", path);
    try {
      PlanRequest request = {
          .spec = options.spec.request, .layout = options.spec.layout, .all_layouts = true};
      request.spec.path = path;
      request.places = Places::kLeast;
      request.open_source = OpenSource;
      request.warnings = options.spec.FindWarnings(options.json);
      const Plan plan = LoadPlan(request, diagnostics);
      for (const Tensor& tensor : plan.graph.logical()) {
        const auto* const from = std::get_if<FromFile>(&tensor.distribution());
        if (from != nullptr) from->file->Check();
      }
      all = diagnostics.all();
      out.Member("valid", true).Member("name", plan.graph.name);
      if (!options.json) {
        PrintUnlessQuiet(fmt::format("{}: valid: {}, {}, {}, {}\n", Escape(path), plan.graph.name,
                                     Count(std::ssize(plan.graph.tensors), "tensor"),
                                     Count(plan.parameters, "parameter"),
                                     Count(plan.world_size(), "rank")));
      }
      WriteDiagnostics(all, out);
      if (!options.json) Report(RenderAll(all), false);
    } catch (const InvalidSpec& e) {
      valid = false;
      out.Member("valid", false);
      WriteDiagnostics(e.diagnostics(), out);
      if (!options.json) Report(RenderAll(e.diagnostics()), false);
    } catch (const Error& e) {
      // A missing spec counts as an invalid spec; the others are still checked.
      if (e.code() != ExitCode::kUsage) throw;
      valid = false;
      out.Member("valid", false);
      WriteDiagnostics({{Diagnostic::Severity::kError, {}, e.what(), e.hint()}}, out);
      if (!options.json) Report(RenderError(e.what(), e.hint()), false);
    }
    out.EndObject();
  }
  out.EndArray();
  if (options.json) Print(out.Finish());
  return valid ? ExitCode::kOk : ExitCode::kUsage;
}

}  // namespace

extern const Command kValidate = {"validate", "Check specs, reporting every mistake with its place",
                                  Configure<RunValidate>};

}  // namespace shardinit
