#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "base/colour.h"
#include "base/json.h"
#include "base/result_file.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "commands/stats_page.h"
#include "report/text.h"
#include "stats/measure.h"

namespace shardinit {
namespace {

struct StatsOptions {
  explicit StatsOptions(CLI::App& app) {
    app.add_option("SPEC|DIR", spec.request.path,
                   "Model spec, or `-` for standard input; or folder of tensors")
        ->required();
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app, "Measure the tensors that this layout of the spec stores");
    AddOnly(app, &only);
    work.AddJobsTo(app, "generate or read, and count");
    work.AddProgressTo(app);
    AddText(app, "--html", "FILE", &html, "Also write a page of pictures: histograms, quantiles");
    AddForce(app, &force);
    AddJson(app, &json);
  }

  SpecOptions spec;
  WorkOptions work;
  std::string only;
  std::string html;  // a file; empty: none
  bool force = false, json = false;
};

std::string Short(double value) { return fmt::format("{:.6g}", value); }

// Writes null for a sum of f64 elements that does not fit in an f64.
void WriteIfFinite(const char* key, double value, JsonWriter& out) {
  out.MemberOrNull(key, std::isfinite(value), value);
}

std::string InJson(const std::vector<Measurement>& results, bool has_rows) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Key("tensors").BeginArray(JsonWriter::kLines);
  for (const Measurement& m : results) {
    out.BeginObject().Member("path", m.tensor->path).Member("dtype", InfoOf(m.tensor->dtype).name);
    out.Member("shape", m.tensor->shape).Member("init", InitText(*m.tensor));
    out.Member("not_finite", m.not_finite);
    if (has_rows && IsOfSource(*m.tensor)) out.Member("zero_rows", m.zero_rows);
    if (m.moments.count > 0) {
      WriteIfFinite("mean", m.moments.mean, out);
      WriteIfFinite("std", m.moments.std(), out);
      out.Member("min", m.moments.min).Member("max", m.moments.max);
      out.Key("quantiles").BeginArray();
      for (size_t i = 0; i < m.quantiles.size(); ++i) {
        out.Value(std::array{kQuantiles[i], m.quantiles[i]});
      }
      out.EndArray().Member("histogram", m.histogram);
    }
    if (m.declared) {
      out.Key("declared").BeginObject().Member("mean", m.declared->mean);
      out.Member("std", m.declared->std).EndObject();
    } else {
      out.Member("declared", nullptr);
    }
    if (m.fit) {
      out.Key("ks").BeginObject().Member("distance", m.fit->distance);
      out.Member("probability", m.fit->probability).EndObject();
    } else {
      out.Member("ks", nullptr);
    }
    out.Member("as_declared", !m.is_wrong).EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

std::string Verdict(const Measurement& m) {
  if (m.is_wrong) return Paint(Role::kBad, "no");
  if (m.not_finite > 0) {
    return Paint(Role::kWarning, fmt::format("-, {} NaN or infinite", Grouped(m.not_finite)));
  }
  // A folder's values are what they are; of a spec, zeros are declared.
  if (m.zero_rows > 0 && IsOfSource(*m.tensor)) {
    return Paint(Role::kWarning, fmt::format("-, {} of zeros", Count(m.zero_rows, "row")));
  }
  return m.declared ? Paint(Role::kGood, "yes") : "-";
}

std::string InTable(const std::vector<Measurement>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"path", "mean", "std", "min", "median", "max", "KS distance", "probability", "as declared"}};
  for (const Measurement& m : results) {
    rows.push_back({m.tensor->path, Short(m.moments.mean), Short(m.moments.std()),
                    Short(m.moments.min), Short(m.quantiles[kMedian]), Short(m.moments.max),
                    m.fit ? fmt::format("{:.3g}", m.fit->distance) : "-",
                    m.fit ? fmt::format("{:.3g}", m.fit->probability) : "-", Verdict(m)});
  }
  return Table(rows, {false, true, true, true, true, true, true, true, true});
}

// Shows one tensor with all measurements.
std::string InFull(const Measurement& m) {
  const Tensor& tensor = *m.tensor;
  std::string text =
      fmt::format("{}: {} {}, {}\n\n", Paint(Role::kStrong, tensor.path), InfoOf(tensor.dtype).name,
                  InShape(tensor.shape), InitText(tensor));
  const auto declared = [&](double DeclaredMoments::*member) {
    return m.declared ? Short((*m.declared).*member) : "";
  };
  std::vector<std::vector<std::string>> rows = {
      {"", "measured", m.declared ? "declared" : ""},
      {"mean", Short(m.moments.mean), declared(&DeclaredMoments::mean)},
      {"std", Short(m.moments.std()), declared(&DeclaredMoments::std)},
      {"min", Short(m.moments.min)}};
  for (size_t i = 0; i < m.quantiles.size(); ++i) {
    rows.push_back({fmt::format("{:g}%", 100 * kQuantiles[i]), Short(m.quantiles[i])});
  }
  rows.push_back({"max", Short(m.moments.max)});
  if (m.not_finite > 0) rows.push_back({"NaN or infinite", Grouped(m.not_finite)});
  if (m.zero_rows > 0) rows.push_back({"rows of zeros", Grouped(m.zero_rows)});
  if (m.fit) {
    rows.push_back({"KS distance", fmt::format("{:.3g}", m.fit->distance)});
    rows.push_back({"probability", fmt::format("{:.3g}", m.fit->probability)});
  }
  text += Table(rows, {false, true, true});
  if (m.moments.max > m.moments.min) {
    text += "\n" + Bars(m.histogram, m.moments.min, m.moments.max, BarStyleOfOutput());
  }
  return text;
}

std::string Complaint(const Measurement& m) {
  std::string why;
  if (m.not_finite > 0) {
    why =
        Count(m.not_finite, "element") + (m.not_finite == 1 ? " is" : " are") + " NaN or infinite";
  } else if (m.fit) {
    why = fmt::format(
        "chance alone would give values this far from it (KS distance {:.3g}) with "
        "probability {:.3g}",
        m.fit->distance, m.fit->probability);
  } else {
    why = fmt::format("its values go from {} to {}", m.moments.min, m.moments.max);
  }
  return fmt::format("{}: {} ({}): {}\n", Paint(Role::kStrong, m.tensor->path, Channel::kTalk),
                     Paint(Role::kBad, "is not as declared", Channel::kTalk), InitText(*m.tensor),
                     why);
}

const ResultKind kStatsPage = {
    "--html",
    "page",
    {"<!DOCTYPE html>\n", "<meta name=\"generator\" content=\"shardinit stats\">"}};

ExitCode RunStats(const StatsOptions& options) {
  const int jobs = options.work.Jobs();
  const ProgressMode mode = options.work.Mode();
  const std::string& path = options.spec.request.path;
  const bool is_folder = MayHoldTensors(path);
  if (is_folder && options.spec.HasOverrides()) {
    throw Error(
        ExitCode::kUsage,
        fmt::format(
            "`{}` is a checkpoint: `--set`, `--mesh`, `--sharding` and `--layout` are for specs",
            path));
  }
  std::optional<TensorFolder> folder;
  if (is_folder) SayFolder(folder.emplace(path));
  const Plan loaded = is_folder ? Plan() : options.spec.Load();
  const Plan& plan = is_folder ? folder->plan() : loaded;
  // A spec may store its tensors padded without a layout, and padding has no distribution.
  const bool stored = is_folder || !options.spec.layout.empty();
  const std::vector<const Tensor*> tensors =
      Matching(stored ? plan.graph.tensors : plan.graph.logical(), options.only);
  std::optional<ResultFile> page;
  if (!options.html.empty()) page.emplace(kStatsPage, options.html, options.force);
  int64_t bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->bytes();
  std::vector<Measurement> results;
  {
    const StretchesOf stretches = folder ? Stored(*folder, tensors) : Generated(tensors);
    Progress progress(mode, "measuring", bytes, options.json);
    results = Measure(tensors, stretches, jobs, [&](int64_t done) { progress.Update(done); });
  }
  if (folder) folder->RequireUnchanged();
  if (page) page->Write(StatsPage(plan.graph.name, results));
  Print(options.json          ? InJson(results, folder.has_value())
        : results.size() == 1 ? InFull(results[0])
                              : InTable(results));
  int64_t wrong = 0;
  for (const Measurement& m : results) {
    if (!m.is_wrong) continue;
    ++wrong;
    Report(Complaint(m), options.json);
  }
  if (wrong == 0) return ExitCode::kOk;
  Report(fmt::format("shardinit: {} of {} not as declared\n", wrong,
                     Count(std::ssize(results), "tensor")),
         options.json);
  return ExitCode::kDifferent;
}

}  // namespace

extern const Command kStats = {
    "stats", "Measure the values of tensors and test them against what the spec declares",
    Configure<RunStats>};

}  // namespace shardinit
