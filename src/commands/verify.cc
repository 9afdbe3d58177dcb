#include "checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "commands/command.h"
#include "commands/options.h"
#include "export/export.h"
#include "export/record.h"
#include "formats/input.h"
#include "formats/parts.h"
#include "place/place.h"
#include "plan/relayout.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct VerifyOptions {
  explicit VerifyOptions(CLI::App& app) {
    TakesBucket(
        app.add_option("DIR", folder,
                       "Folder of the checkpoint or export, or, with --spec, of safetensors files, "
                       "DCP files or "
                       "zarr arrays"))
        ->required();
    AddText(app, "--spec", "SPEC", &spec.request.path,
            "Compare the values with those of this spec");
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app);
    AddPartOfFile(app, &part);
    AddText(app, "--signers", "FILE", &signature.signers,
            "Exit 1 unless one of these ssh-keygen allowed signers signed the manifest");
    AddText(
        app, "--signature", "FILE", &signature.signature,
        "The signature; default: the file that `ssh-keygen -Y sign` wrote next to the manifest");
    app.add_flag("--strict", strict, "Also exit 1 if the folder has foreign names");
    work.AddJobsTo(app, "read and hash");
    work.AddProgressTo(app);
    AddJson(app, &json);
  }

  std::string folder, part;
  SpecOptions spec;
  WorkOptions work;
  SignatureRequest signature;
  bool strict = false, json = false;
};

void ReportFindings(const VerifyOptions& options, const Findings& findings,
                    std::string_view what = {}) {
  for (const Finding& finding : findings) {
    Report(Escape(fmt::format("{}{}{}{}{}{}", finding.file, finding.file.empty() ? "" : ": ", what,
                              finding.tensor, finding.tensor.empty() ? "" : " ", finding.message)) +
               "\n",
           options.json);
  }
  if (findings.more() > 0) {
    Report(fmt::format("and {} more\n", Grouped(findings.more())), options.json);
  }
}

void AddFindings(const Findings& findings, JsonWriter& out) {
  out.Key("findings").BeginArray(JsonWriter::kLines);
  for (const Finding& finding : findings) {
    out.BeginObject().Member("file", finding.file).Member("tensor", finding.tensor);
    out.Member("message", finding.message).EndObject();
  }
  out.EndArray().Member("more_findings", findings.more());
}

void AddForeign(const Findings& foreign, JsonWriter& out) {
  out.Key("foreign").BeginArray();
  for (const Finding& finding : foreign) out.Value(finding.file);
  out.EndArray().Member("more_foreign", foreign.more());
}

// With --strict, a foreign name is a difference, but not damage.
ExitCode ResultOf(const VerifyOptions& options, const Findings& foreign) {
  if (foreign.empty() || !options.strict) return ExitCode::kOk;
  Report(
      fmt::format("shardinit: `{}` is intact, but {} in it {} foreign, which `--strict` forbids\n",
                  Escape(options.folder), Count(foreign.count(), "name"),
                  foreign.count() == 1 ? "is" : "are"),
      options.json);
  return ExitCode::kDifferent;
}

// Compares values with those that --spec generates. With `manifest`, the folder is a checkpoint
// that was found intact. Otherwise it has safetensors files, DCP files or zarr arrays.
ExitCode RunAgainstSpec(const VerifyOptions& options, const Plan& plan, std::string_view manifest) {
  WorkCounters counters;
  Comparison result;
  {
    Progress progress(options.work.Mode(), "comparing", plan.bytes, options.json);
    const WorkerOptions workers = options.work.Workers(false);
    // For a checkpoint, only one side is hashed.
    const bool is_verified = !manifest.empty();
    const auto update = [&](const WorkCounters& c) {
      progress.Update(c.hashed_bytes / (is_verified ? 1 : 2));
    };
    result = is_verified
                 ? CompareVerified(options.folder, manifest, plan, workers, update, &counters)
                 : Compare(options.folder, plan, workers, update, &counters, {}, options.part);
  }
  const bool equal = result.findings.empty();
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder).Member("equal", equal);
    out.Member("tensors", result.tensors).Member("bytes", result.bytes);
    out.Member("optimizer_entries", result.optimizer_entries);
    AddFindings(result.findings, out);
    out.EndObject();
    Print(out.Finish());
  } else if (equal) {
    PrintUnlessQuiet(
        fmt::format("{}: equal to {}: {}, {}{}\n", Escape(options.folder), plan.graph.name,
                    Count(result.tensors, "tensor"), InBytes(result.bytes),
                    result.optimizer_entries == 0
                        ? ""
                        : fmt::format("; not compared: {} of an optimizer",
                                      Count(result.optimizer_entries, "entry", "entries"))));
  }
  if (equal) return ExitCode::kOk;
  ReportFindings(options, result.findings);
  Report(fmt::format("shardinit: `{}` differs from {}: {}\n", Escape(options.folder),
                     plan.graph.name, Count(result.findings.count(), "finding")),
         options.json);
  return ExitCode::kDifferent;
}

// Compares the bytes of a checkpoint or an export with its own record of them.
VerifyResult CheckBytes(const VerifyOptions& options, bool is_export) {
  std::mutex mutex;
  std::optional<Progress> progress;
  const ProgressMode mode = options.work.Mode();
  int jobs = options.work.Jobs();
  // A network is faster with more requests than cores.
  if (options.work.jobs == 0 && Place::TraitsAt(options.folder).is_remote) jobs = std::max(jobs, 8);
  return (is_export ? VerifyExport : Verify)(
      *Place::At(options.folder), jobs, [&](int64_t bytes, int64_t total) {
        const std::lock_guard lock(mutex);
        if (!progress) progress.emplace(mode, "checking", total, options.json);
        progress->Update(bytes);
      });
}

// If requested, checks the signature of the record that the files were compared with.
std::optional<Signed> CheckSigner(const VerifyOptions& options, const char* name,
                                  std::string_view statement) {
  SignatureRequest request = options.signature;
  if (request.signers.empty() || statement.empty()) return {};
  if (request.signature.empty()) request.signature = options.folder + "/" + SignatureOf(name);
  return CheckSignature(request, statement);
}

// An unsigned checkpoint is not damaged, but may be somebody else's.
ExitCode ResultOf(const VerifyOptions& options, const char* name,
                  const std::optional<Signed>& found) {
  if (!found || !found->signer.empty()) return ExitCode::kOk;
  Report(fmt::format("shardinit: `{}` is intact, but its {} {}\n  hint: `ssh-keygen -Y sign -n "
                     "shardinit -f KEY {}/{}` signs it\n",
                     Escape(options.folder), name, found->message, Escape(options.folder), name),
         options.json);
  return ExitCode::kDifferent;
}

void PrintIntact(const VerifyOptions& options, bool is_export, const VerifyResult& result,
                 const std::optional<Signed>& found) {
  if (options.json) {
    JsonWriter out;
    out.BeginObject(JsonWriter::kLines).Member("folder", options.folder);
    out.Member("intact", result.findings.empty())
        .Member(is_export ? "files" : "ranks", result.files);
    out.Member("boxes", result.boxes).Member("bytes", result.bytes);
    if (found) out.Member("signer", found->signer);
    AddFindings(result.findings, out);
    AddForeign(result.foreign, out);
    out.EndObject();
    Print(out.Finish());
  } else if (result.findings.empty()) {
    PrintUnlessQuiet(fmt::format(
        "{}: intact: {}, {}, {}{}{}\n", Escape(options.folder),
        Count(result.files, is_export ? "file" : "rank"), Count(result.boxes, "box", "boxes"),
        InBytes(result.bytes),
        found && !found->signer.empty() ? fmt::format("; signed by {}", Escape(found->signer)) : "",
        result.foreign.empty()
            ? ""
            : fmt::format("; beside it {}", Count(result.foreign.count(), "foreign name"))));
  }
}

// Throws Error (kUsage) for options that cannot apply to any folder.
void RequireSense(const VerifyOptions& options, bool against_spec) {
  const bool is_remote = Place::TraitsAt(options.folder).is_remote;
  const SignatureRequest& signature = options.signature;
  if (!against_spec && options.spec.HasOverrides()) {
    throw Usage(fmt::format("{}, and none is given", kOverridesAreForSpecs), "add `--spec SPEC`");
  }
  if (!against_spec && !options.part.empty()) {
    throw Usage(fmt::format("`{}` needs `--spec`", kPartOption), "add `--spec SPEC`");
  }
  if (signature.signers.empty() && !signature.signature.empty()) {
    throw Usage("`--signature` is given without trusted keys", "add `--signers FILE`");
  }
  if (is_remote && !signature.signers.empty() && signature.signature.empty()) {
    throw Usage("signatures cannot be read from buckets",
                "download it, and give it with `--signature FILE`");
  }
}

// Throws Error (kUsage) for options that do not apply to a folder without a plan, whose tensors are
// compared.
void RequireNoPlanOptions(const VerifyOptions& options) {
  if (!options.signature.signers.empty()) {
    throw Usage("`--signers` checks the manifest of a checkpoint, but there is none",
                "without `--spec` the record of an export is compared with its signature");
  }
  if (options.strict) {
    throw Usage(
        "`--strict` checks the names of files, and `--spec` checks tensors: give one of them",
        "without `--spec` an export is compared with its own list");
  }
}

// Returns whether a checkpoint, which may be damaged, has values that `gen` cannot generate.
bool HoldsCopy(const std::string& folder) {
  try {
    Digest plan_sha256;
    return IsCopy(LoadCheckpointPlan(folder, &plan_sha256));
  } catch (const Error&) {
    return false;
  }
}

ExitCode RunVerify(const VerifyOptions& options) {
  const bool is_remote = Place::TraitsAt(options.folder).is_remote;
  const auto holds = [&](const char* name) { return InputExists(options.folder + "/" + name); };
  const bool against_spec = !options.spec.request.path.empty();
  RequireSense(options, against_spec);
  // Report mistakes in the spec before reading a large checkpoint.
  std::optional<Plan> spec;
  if (against_spec) spec = options.spec.Load();
  const bool has_plan = holds(kPlanName);
  if (against_spec && !has_plan) {
    RequireNoPlanOptions(options);
    return RunAgainstSpec(options, *spec, {});
  }
  // An export has a record instead of ranks. In a bucket, an incomplete export has a claim.
  const bool is_export = !holds(kManifestName) && !has_plan &&
                         (holds(kExportName) || (is_remote && holds(kExportClaim)));
  const char* const name = is_export ? kExportName : kManifestName;
  const VerifyResult result = CheckBytes(options, is_export);
  const auto found = CheckSigner(options, name, result.statement);
  ReportFindings(options, result.foreign, "is foreign: ");
  if (against_spec && result.findings.empty()) {
    const ExitCode code =
        std::max(ResultOf(options, result.foreign), ResultOf(options, name, found));
    return std::max(code, RunAgainstSpec(options, *spec, result.statement));
  }
  PrintIntact(options, is_export, result, found);
  if (result.findings.empty()) {
    return std::max(ResultOf(options, result.foreign), ResultOf(options, name, found));
  }
  ReportFindings(options, result.findings);
  Report(
      fmt::format("shardinit: `{}` is damaged: {}\n  hint: {}\n", Escape(options.folder),
                  Count(result.findings.count(), "finding"),
                  is_remote ? "remove the damaged objects with the store's own tool, and rerun the "
                              "command that wrote them"
                  : is_export ? "remove it, and export again; move away what does not belong to it"
                  : HoldsCopy(options.folder)
                      ? "remove it, and copy again; move away what does not belong to it"
                      : "run the `shardinit gen` that wrote it with `--repair`; move away "
                        "what does not belong to it"),
      options.json);
  return ExitCode::kDifferent;
}

}  // namespace

extern const Command kVerify = {"verify",
                                "Check every byte of a checkpoint or an export against its digests",
                                Configure<RunVerify>};

}  // namespace shardinit
